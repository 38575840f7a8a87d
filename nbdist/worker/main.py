"""A rank's life: get ready, work, hand over the values, wait for what is next."""

from __future__ import annotations

import builtins
import multiprocessing
import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

from nbdist.cell import READY_MADE_NAMES
from nbdist.channel import Channel
from nbdist.errors import ChannelEnded, Failure
from nbdist.looks import Look
from nbdist.messages import (
    FIRST_RUN,
    Assignment,
    Debug,
    Finished,
    HandingOver,
    Leave,
    Raised,
    Ready,
    Run,
    SendAgain,
)
from nbdist.role import become_rank
from nbdist.shell import current_shell
from nbdist.values.foreign import Refusal, call_foreign
from nbdist.values.graph import dump_error
from nbdist.values.memory import open_memory
from nbdist.values.news import NOTES, take_news
from nbdist.values.parcel import Echo, unpack_each
from nbdist.values.surroundings import (
    ENVIRONMENT,
    GRAD_MODE,
    Surroundings,
    Waiting,
    difference,
    is_all,
    surroundings,
)
from nbdist.values.twins import Twins
from nbdist.worker import interrupts, reserve
from nbdist.worker.afterfork import note_last_words
from nbdist.worker.asking import Questions
from nbdist.worker.bars import Bars
from nbdist.worker.capture import Outbox, flush_c_streams, keep_order, replace_streams
from nbdist.worker.drawn import hear_drawn_bars
from nbdist.worker.group import Group, environment
from nbdist.worker.handover import Ended, is_shells, nothing_to_hand_over
from nbdist.worker.hints import FORMER_GROUP, former_group_in, hint_for, is_consequence
from nbdist.worker.keeping import Offer
from nbdist.worker.leaving import end_child, leave
from nbdist.worker.looking import OwnNames, looked
from nbdist.worker.rebinding import rebind_models
from nbdist.worker.sources import learn_sources
from nbdist.worker.telling import Telling
from nbdist.worker.threads import THREADS_VARIABLE, share_cores, threads_of_work
from nbdist.worker.unsent import unsent_path
from nbdist.worker.watch import Watch
from nbdist.worker.work import Done, NoWork, Wanted, Work, formatted, is_good_exit, users_traceback


class Rank:
    """One worker process, from its fork to its end."""

    def __init__(self, assignment: Assignment, channel: Channel, twins: Twins, wanted: Wanted):
        self._assignment = assignment
        self._channel = channel
        self._twins = twins
        self._wanted = wanted
        self._outbox = Outbox(channel, unsent_path(assignment.scratch, assignment.rank))
        self._bars = Bars(self._outbox)
        self._telling = Telling(self._outbox, self._bars)
        self._group = Group(assignment)
        self._done = Done()
        self._work: Work = NoWork()
        self._offer = Offer(Echo({}, {}))
        self._lent: Any = None  # what the kernel may still be reading belongs to
        self._notebooks_own: dict[str, Any] = {}
        self._still_lent: dict[str, Any] = {}
        self._questions = Questions(channel, self._outbox, lambda: self._group.scope.rank)
        self._around: Surroundings = {}
        self._left: Surroundings = {}  # as the last work left it, until the notebook has changed something
        self._own_variables = {*environment(assignment), THREADS_VARIABLE}
        self._told_around = Waiting(self._own_variables)
        self._own_names = OwnNames()
        self._watch = Watch(twins.namespace, self._group, self._outbox)
        self._gauged: Callable[[], AbstractContextManager[None]] = nullcontext
        if assignment.gauges:
            from nbdist.worker.gauges import Gauges

            self._gauged = Gauges(self._outbox, assignment.gpu_uuid).working

    def serve(self, work: Work | None) -> None:
        """Do `work` and whatever the kernel sends afterwards, until it says to leave."""
        become_rank(self._assignment.rank)
        board = interrupts.Board(self._assignment.scratch)
        stopped = partial(board.stopped, self._assignment.rank)
        interrupts.install(self._aim, stopped, background=self._assignment.background, lives_on=work is None)
        interrupts.begin(FIRST_RUN)
        replace_streams(self._outbox)
        keep_order(self._outbox)
        self._questions.install()
        hear_drawn_bars(self._bars)
        self._telling.install()
        os.environ.update(environment(self._assignment))
        self._twins.watch_forks()
        self._twins.settle_files()
        config: Any = multiprocessing.current_process()._config  # type: ignore[attr-defined]
        config["tempdir"] = self._assignment.scratch  # the kernel removes it, however this process ends
        note_last_words(self._assignment.scratch, self._assignment.rank)
        self._own_names.given(self._twins.namespace)
        trouble = self._attempt(self._get_ready)
        if trouble.error is not None:
            self._finish(trouble)
        else:
            self._outbox.post(Ready(pid=os.getpid(), works=work is not None))
            if work is not None:
                self._finish(self._do(work))
        while not isinstance(message := self._channel.receive(), Leave):
            if isinstance(message, SendAgain):
                self._hand_over(message)
            elif isinstance(message, Look):
                self._look(message)
            elif isinstance(message, Debug):
                interrupts.begin(message.number)
                self._debug(message)
            elif isinstance(message, Run):
                interrupts.begin(message.number)
                self._take(message)

    def leave(self) -> None:
        """End as a Python process does."""
        leave(self._twins.files)
        self._outbox.flush()

    def _aim(self) -> Callable[[], None]:
        """What frees a main thread that has been interrupted and does not come back to Python."""
        generation = self._group.generation

        def free() -> None:
            self._watch.tell()
            self._group.break_off(generation)

        return free

    def _get_ready(self) -> Done:
        shell = current_shell()
        if shell is not None:
            from nbdist.worker.notebook import take_over

            take_over(shell, self._outbox, self._bars, has_pager=self._assignment.rank == 0)
        share_cores(self._assignment.world_size)
        self._group.set_up()
        if self._assignment.seed is not None:
            from nbdist.training import seed_everything

            seed_everything(self._assignment.seed)
        return Done()

    def _attempt(self, step: Callable[[], Done], *, interruptible: bool = True) -> Done:
        """The boundary at which whatever the user's code raises becomes a message."""
        try:
            with interrupts.listening(interruptible):
                if interruptible and interrupts.came():  # before there was anything to interrupt
                    raise KeyboardInterrupt
                return step()
        except BaseException as error:  # noqa: BLE001
            reserve.give_back()
            if is_good_exit(error):
                return Done()
            if interrupts.came():  # a consequence, whatever it is: nobody reads its traceback
                return Done(error=error)
            self._outbox.post(Raised(type_name=type(error).__name__))  # the traceback may take a while
            return Done(error=error, traceback=tuple(formatted(error)))

    def _look(self, message: Look) -> None:
        """Say what the notebook's completion and help want to know."""
        self._lend_ready_made()
        answer = looked(message, {**vars(builtins), **self._twins.namespace})
        self._take_back_ready_made()
        self._outbox.post(answer)
        self._outbox.flush()

    def _debug(self, message: Debug) -> None:
        """Let the user look into what failed, if it was this rank; nothing is handed over."""

        def look() -> Done:
            error = self._done.error
            if error is not None and message.rank == self._assignment.rank:
                self._lend_ready_made()
                self._questions.post_mortem(users_traceback(error))
                self._take_back_ready_made()
            return Done()

        done = self._attempt(look)
        self._outbox.post(Finished(outcome=done.outcome))
        self._outbox.flush()

    def _do(self, work: Work, group: int | None = None, ranks: tuple[int, ...] | None = None) -> Done:
        """Do a piece of work.

        Args:
            group: number of the process group; see `Group.renew`. None needs none.
            ranks: who does it, if not all.
        """
        self._done, self._lent = Done(), None  # frames of an exception hold memory
        self._work = work
        around = self._left if is_all(self._left, live=True) else self._surroundings()
        with self._watch.working(), self._gauged():
            entered = self._attempt(partial(self._enter, group, ranks))
            reserve.take()
            done = self._attempt(work.run) if entered.error is None else entered
        reserve.give_back()
        if not self._outbox.in_owner:
            end_child(done)
        self._bars.end_all()
        after = self._left = self._surroundings()
        if done.error is not None:
            done = replace(done, in_former_group=former_group_in(done.error) is not None)
            # An interrupt may have struck where torch was about to switch gradients on again.
            after = {title: value for title, value in after.items() if title != GRAD_MODE}
        self._around = difference(around, after)
        self._take_back_ready_made()
        self._group.leave_subset()
        if self._assignment.device.startswith("cuda"):
            done = self._after_device(done)
        self._telling.end()
        return done

    def _enter(self, group: int | None, ranks: tuple[int, ...] | None) -> Done:
        if group is not None and self._group.renew(group):
            rebind_models(self._group.defaults, self._twins.namespace)
        if ranks is not None and self._assignment.rank in ranks:
            self._group.enter_subset(ranks)
        with interrupts.held_back():
            self._lend_ready_made()
        return Done()

    def _after_device(self, done: Done) -> Done:
        """GPU calls return before they are done: an error of theirs may come only now."""
        import torch

        if done.error is not None:  # what waits there for other ranks waits in vain
            self._group.break_off(self._group.generation)

        def wait() -> Done:
            torch.cuda.synchronize()
            return Done()

        waited = self._attempt(wait)
        return waited if done.error is None and waited.error is not None else done

    def _surroundings(self) -> Surroundings:
        """The notebook's, as far as they come back: from rank 0, and nothing of the run's own."""
        if self._assignment.rank != self._wanted.lead or self._wanted.results:
            return {}
        around = surroundings(live=self._wanted.live)
        own = self._own_variables
        kept = {name: value for name, value in around[ENVIRONMENT].items() if name not in own}
        return {**around, ENVIRONMENT: kept}

    def _lend_ready_made(self) -> None:
        """Names that every cell finds. They are lent as builtins: what lies in the namespace
        afterwards has been assigned by the cell. The notebook's own are out of the way meanwhile."""
        import torch

        scope = self._group.scope
        values = (scope.rank, self._assignment.rank, scope.world_size, torch.device(self._assignment.device))
        vars(builtins).update(zip(READY_MADE_NAMES, values, strict=True))
        namespace = self._twins.namespace
        self._notebooks_own = {name: namespace.pop(name) for name in READY_MADE_NAMES if name in namespace}

    def _take_back_ready_made(self) -> None:
        namespace = self._twins.namespace
        lent = {name: vars(builtins).pop(name, None) for name in READY_MADE_NAMES}
        self._still_lent = {name: value for name, value in lent.items() if name not in namespace}
        for name in self._notebooks_own.keys() - namespace.keys():
            namespace[name] = self._notebooks_own[name]

    def _take(self, message: Run) -> None:
        """Take what the notebook has new for this rank, and do the work."""
        news_fd, work_fd = self._channel.take_fd(), self._channel.take_fd()
        if message.taken:
            self._offer.taken(self._twins)
            self._offer.share(self._twins, message.made)
        self._offer = Offer(Echo({}, {}))
        self._wanted = Wanted(output=())
        work: list[Work] = []

        def unpack() -> Done:
            before = dict(self._twins.namespace)
            if any(key.startswith("around:") for key, *_ in message.news.frames):
                self._left = {}
            rest = take_news(message, news_fd, self._twins, self._told_around)
            self._own_names.given(self._twins.namespace, before)
            learn_sources(rest.get("sources", {}))
            for note in rest[NOTES]:
                self._outbox.text("stderr", f"nbdist: {note}\n")
            memory = open_memory(work_fd, message.work.size_bytes)
            ((_, (own, self._wanted)),) = unpack_each(message.work, memory, self._twins)
            work.append(own)
            return Done()

        # An interrupt must not leave half of the news: it ends the work, once that begins.
        done = self._attempt(unpack, interruptible=False)
        os.close(work_fd)
        self._twins.names = dict(self._twins.namespace)
        if message.ranks is not None and self._assignment.rank not in message.ranks:
            # Idle: it meets the others where all meet anew, and no more.
            done = self._do(NoWork(), message.group, message.ranks) if done.error is None else done
            self._outbox.text("stderr", "".join(f"{line}\n" for line in done.traceback))
        elif done.error is None:
            self._finish(self._do(work[0], message.group, message.ranks))
        else:
            self._finish(replace(done, untaken=True))

    def _finish(self, done: Done) -> None:
        self._done = done
        self._outbox.add(HandingOver())  # mostly it is over in no time
        flush_c_streams()  # C libraries' text comes before the word that we are done
        self._hand_over(SendAgain())

    def _hand_over(self, again: SendAgain) -> None:
        """Say how the work ended, with the values that are wanted from this rank."""
        rank = self._assignment.rank
        ended = Ended(
            work=self._work,
            done=self._done,
            twins=self._twins,
            wanted=self._wanted,
            names={**self._twins.namespace, **self._still_lent},
            around=self._around,
            rank=rank,
            logs=self._assignment.logs,
        )
        built = call_foreign(partial(ended.hand_over, again))
        if isinstance(built, Refusal):  # no memory for the values, say: the outcome is told all the same
            built = nothing_to_hand_over(self._done, built.reason)
        self._lent, self._offer = built.held, built.offer
        message = replace(built.message, threads=bool(threads_of_work()), untaken=self._done.untaken)
        if rank == 0 and self._wanted.live and message.values is not None:
            own = self._own_names.infos(self._twins.namespace, is_shells)
            message = replace(message, values=replace(message.values, names=own))
        if message.outcome == "interrupted" and not interrupts.came():
            message = replace(message, outcome="failed")  # an interrupt that nobody sent is the cell's own
        if message.outcome == "failed":
            message = replace(message, failure=self._failure(self._done))
        self._outbox.post(message, fds=[] if built.fd is None else [built.fd])
        self._outbox.flush()

    def _failure(self, done: Done) -> Failure:
        error = done.error
        assert error is not None
        text = _text_of(error)
        return Failure(
            rank=self._assignment.rank,
            time_s=time.monotonic(),
            type_name=type(error).__name__,
            message=text,
            cell_line=done.cell_line,
            traceback=done.traceback,
            hint=FORMER_GROUP if done.in_former_group else hint_for(error, text),
            consequence=is_consequence(error) and not done.in_former_group,
            pickled=dump_error(error, self._twins),
        )


def _text_of(error: BaseException) -> str:
    """An exception's text, whose own code may fail."""
    text = call_foreign(partial(str, error))
    return f"<no text: {text.reason}>" if isinstance(text, Refusal) else text


def run_rank(
    assignment: Assignment, channel: Channel, twins: Twins, wanted: Wanted, work: Work | None
) -> None:
    """Be a rank until the kernel says to leave; then wait for the rank's own children as a plain
    Python process does at its end."""
    rank = Rank(assignment, channel, twins, wanted)
    try:
        rank.serve(work)
    except ChannelEnded:  # the kernel is gone: nobody is left to hear anything
        os._exit(1)
    rank.leave()
