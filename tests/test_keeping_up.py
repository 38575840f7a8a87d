"""Live sessions: what the notebook changed is sent first, what the ranks changed comes back or stays."""

from __future__ import annotations

import re

import pytest
from notebook_kernel import NotebookKernel

SETUP = """
import torch
cfg = {"lr": 0.1, "sizes": [1, 2]}
losses = []
alias = losses
small = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(small.parameters(), lr=0.1)
large = torch.nn.Linear(800, 800)

def rate():
    return cfg["lr"]
"""


@pytest.fixture(params=["fork", "forkserver"])
def method(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def live(kernel: NotebookKernel, method: str) -> NotebookKernel:
    """A kernel with a live session of two ranks, started after `SETUP`."""
    kernel.run(SETUP).check()
    kernel.run(f"%distributed start --devices 2 --start-method {method}", timeout_s=60).check()
    yield kernel
    kernel.run("%distributed stop").check()
    kernel.run("%reload_ext nbdist").check()  # ends the fork server
    assert kernel.processes() == {}


def said(run, about: str) -> str:
    """The line of nbdist's that begins so."""
    found = re.findall(rf"^nbdist: {about}(.*)$", run.stderr, re.MULTILINE)
    return found[0] if found else ""


def test_names_bound_anew_and_changed_in_place_are_sent_first(live: NotebookKernel) -> None:
    live.run("%%distributed\nrate(), cfg['sizes']").check()
    first = live.run("cfg['lr'] = 0.5\nnew = torch.arange(3)").check()
    assert first.stderr == ""
    run = live.run("%%distributed\nprint(rate(), cfg, new.tolist())").check()
    assert run.stdout == "0.5 {'lr': 0.5, 'sizes': [1, 2]} [0, 1, 2]\n"
    assert said(run, "sent to the ranks: ") == "cfg, new"
    again = live.run("%%distributed\nprint(rate(), cfg, new.tolist())").check()
    assert again.stdout == run.stdout
    assert again.stderr == ""


def test_a_function_that_is_defined_again_is_sent(live: NotebookKernel) -> None:
    live.run("%%distributed\nrate()").check()
    live.run("def rate():\n    return -cfg['lr']").check()
    run = live.run("%%distributed\nprint(rate())").check()
    assert run.stdout == "-0.1\n"
    assert said(run, "sent to the ranks: ") == "rate"


def test_what_the_ranks_change_of_the_notebook_is_changed_in_place(live: NotebookKernel) -> None:
    live.run("weight, before = small.weight, small.weight.detach().clone()").check()
    live.run(
        """
        %%distributed
        losses.append(cfg["lr"] + rank)
        cfg["sizes"].append(3)
        loss = small(torch.ones(1, 4)).sum()
        loss.backward()
        optimizer.step()
        """
    ).check()
    assert live.value("(losses, alias is losses, cfg['sizes'])") == ([0.1], True, [1, 2, 3])
    assert live.value("small.weight is weight and optimizer.param_groups[0]['params'][0] is weight") is True
    assert live.value("torch.allclose(weight, before - 0.1)") is True
    run = live.run("%%distributed\nprint(losses)").check()
    assert run.stdout == "[0] [0.1]\n[1] [1.1]\n"  # what came back counts as seen
    assert run.stderr == ""


def test_what_came_back_and_was_changed_here_is_sent_back(live: NotebookKernel) -> None:
    live.run("%%distributed\nstate = {'n': rank}\nother = [state]").check()
    live.run("mine, held = state, other").check()
    live.run("%%distributed\nstate['n'] += 10").check()
    assert live.value("(state, mine is state, held[0] is state)") == ({"n": 10}, True, True)
    live.run("state['n'] = 7").check()
    run = live.run("%%distributed\nprint(state)\nstate['n'] += rank").check()
    assert run.stdout == "{'n': 7}\n"
    assert said(run, "sent to the ranks: ") == "state"
    run = live.run("%%distributed\nprint(state)").check()
    assert run.stdout == "[0] {'n': 7}\n[1] {'n': 8}\n"


def test_large_values_stay_until_they_are_pulled(live: NotebookKernel) -> None:
    run = live.run("%%distributed\ndata = torch.full((500_000,), float(rank))\ncount = 3").check()
    assert said(run, "on the ranks only: ") == ("data (Tensor, 1.9 MiB); %distributed pull NAME brings it")
    assert live.value("('data' in globals(), count)") == (False, 3)
    run = live.run("%%distributed\ndata.sum().item()").check()
    assert (run.result, run.stderr) == ({"text/plain": "0.0"}, "")
    live.run("%distributed pull data").check()
    assert live.value("(data.shape[0], data.sum().item())") == (500_000, 0.0)
    live.run("data += 1").check()
    run = live.run("%%distributed\nprint(data[0].item())").check()
    assert run.stdout == "1.0\n"
    assert said(run, "sent to the ranks: ") == "data"


def test_a_large_model_changed_on_the_ranks_stays_whole_there_until_it_is_pulled(
    live: NotebookKernel,
) -> None:
    live.run("weight, before = large.weight, large.weight.detach().clone()").check()
    cell = (
        "%%distributed\nwith torch.no_grad():\n    large.weight += 1\n    large.bias += 1\nlosses.append(1)"
    )
    run = live.run(cell).check()
    assert said(run, "on the ranks only: ").startswith("large (its new content, 2.4 MiB)")
    assert live.value("(torch.equal(large.weight, before), losses)") == (True, [1])
    assert live.run(cell).check().stderr == ""  # said once
    run = live.run("%%distributed\n(large.weight.mean() > 1.5).item()").check()
    assert run.result == {"text/plain": "True"}
    live.run("%distributed pull large").check()
    assert live.value("torch.allclose(large.weight, before + 2) and large.weight is weight") is True
    live.run("with torch.no_grad(): large.weight.zero_()").check()
    run = live.run("%%distributed\nprint(large.weight.abs().sum().item())").check()
    assert run.stdout == "0.0\n"
    assert said(run, "sent to the ranks: ") == "large"


def test_what_both_sides_changed_is_reported_once_and_push_decides(live: NotebookKernel) -> None:
    live.run("%%distributed\nwith torch.no_grad():\n    large.weight.fill_(1)").check()
    live.run("with torch.no_grad():\n    large.weight.fill_(2)\n    large.bias.fill_(2)").check()
    cell = "%%distributed\nprint(large.weight.mean().item())"
    run = live.run(cell).check()
    assert run.stdout == "1.0\n"
    assert said(run, "large: changed in the notebook and on the ranks; the ranks keep theirs")
    again = live.run(cell).check()
    assert (again.stdout, again.stderr) == ("1.0\n", "")
    live.run("%distributed push large").check()
    run = live.run(cell).check()
    assert (run.stdout, run.stderr) == ("2.0\n", "")


def test_a_name_that_both_sides_bound(live: NotebookKernel) -> None:
    live.run("%%distributed\ndata = torch.ones(500_000)").check()
    live.run("data = 'mine'").check()
    cell = "%%distributed\nprint(len(data))"
    run = live.run(cell).check()
    assert run.stdout == "500000\n"
    assert said(run, "data: changed in the notebook and on the ranks")
    assert live.run(cell).check().stderr == ""
    live.run("%distributed push data").check()
    assert live.run(cell).check().stdout == "4\n"


def test_names_that_are_deleted(live: NotebookKernel) -> None:
    live.run("%%distributed\nmade = 1\nlosses").check()
    live.run("del losses").check()
    run = live.run("%%distributed\n'losses' in globals()").check()
    assert run.result == {"text/plain": "False"}
    live.run("%%distributed\ndel made").check()
    assert live.value("'made' in globals()") is False


def test_what_cannot_be_sent_is_named_and_the_session_lives_on(live: NotebookKernel) -> None:
    live.run("import threading\nlock = threading.Lock()").check()
    run = live.run("%%distributed\nlock.acquire()")
    assert run.error is not None
    assert run.error.ename == "SessionError"
    assert "lock cannot be sent to the ranks, and the cell" in run.error.evalue
    pushed = live.run("%distributed push lock")
    assert pushed.error is not None
    assert "lock cannot be sent to the ranks: it is a lock" in pushed.error.evalue
    assert live.run("%%distributed\nprint(rate())").check().stdout == "0.1\n"


def test_a_change_that_cannot_be_sent_is_named_once(kernel: NotebookKernel) -> None:
    kernel.run("steps = (i for i in range(9))").check()
    kernel.run("%distributed start --devices 2 --start-method fork").check()
    kernel.run("next(steps), next(steps)").check()
    run = kernel.run("%%distributed\nnext(steps)").check()
    assert run.result == {"text/plain": "0"}
    assert said(run, "steps has changed in the notebook; the ranks have it as it was: ")
    assert kernel.run("%%distributed\nprint('on')").check().stderr == ""
    kernel.run("%distributed stop").check()


def test_what_cannot_travel_lives_on_the_ranks(live: NotebookKernel) -> None:
    run = live.run("%%distributed\nimport threading\nlock = threading.Lock()").check()
    assert re.fullmatch(r"lock \(lock, \d+ bytes, does not travel\)", said(run, "on the ranks only: "))
    assert live.run("%%distributed\nlock.acquire()").check().result == {"text/plain": "True"}
    pulled = live.run("%distributed pull lock")
    assert pulled.error is not None
    assert "rank 0 did not hand over lock: it is a lock" in pulled.error.evalue
    assert "did you mean" not in pulled.error.evalue


def test_surroundings_follow(live: NotebookKernel) -> None:
    live.run(
        "import os\nos.environ['MINE'] = 'x'\nos.makedirs('below', exist_ok=True)\nos.chdir('below')"
    ).check()
    run = live.run(
        "%%distributed\nimport os\nprint(os.environ['MINE'], os.path.basename(os.getcwd()))"
    ).check()
    assert run.stdout == "x below\n"
    live.run("%%distributed\nos.chdir('..')\ndel os.environ['MINE']").check()
    assert live.value("(os.path.basename(os.getcwd()) != 'below', 'MINE' in os.environ)") == (True, False)


def test_a_ranks_own_variables_stay_its_own(live: NotebookKernel) -> None:
    """Such as tutorials for one process set them."""
    torchruns = "RANK LOCAL_RANK WORLD_SIZE MASTER_ADDR MASTER_PORT OMP_NUM_THREADS".split()
    read = f"import os\nown = [os.environ.get(name) for name in {torchruns}]"
    live.run(f"%%distributed --gather own\n{read}").check()
    before = live.value("own")
    live.run("import os\nos.environ.update(dict.fromkeys(" + repr(torchruns) + ", '7'), MINE='x')").check()
    live.run(f"%%distributed --gather own,mine\n{read}\nmine = os.environ['MINE']").check()
    assert live.value("own, mine") == (before, ["x", "x"])
    live.run(f"for name in {[*torchruns, 'MINE']}: del os.environ[name]").check()
    live.run(f"%%distributed --gather own\n{read}").check()
    assert live.value("own") == before


def test_settings_of_a_library_that_the_ranks_load_later_follow(live: NotebookKernel) -> None:
    live.run("import pandas as pd\npd.set_option('display.max_rows', 3)").check()
    live.run("%%distributed\nNone").check()
    live.run("pd.set_option('display.precision', 1)").check()
    cell = "%%distributed\npd.get_option('display.max_rows'), pd.get_option('display.precision')"
    assert live.run(cell).check().result == {"text/plain": "(3, 1)"}
    live.run("pd.reset_option('display.max_rows')\npd.reset_option('display.precision')").check()


def test_settings_from_before_the_start_follow_when_the_ranks_load_the_library(
    kernel: NotebookKernel,
) -> None:
    kernel.run("import torch, pandas as pd\npd.set_option('display.max_rows', 7)").check()
    kernel.run("%distributed start --devices 2 --start-method forkserver", timeout_s=60).check()
    cell = "%%distributed\npd.get_option('display.max_rows')"
    assert kernel.run(cell).check().result == {"text/plain": "7"}
    kernel.run("pd.reset_option('display.max_rows')\n%distributed stop\n%reload_ext nbdist").check()


def test_logs_of_other_ranks_are_no_files_of_the_notebook(live: NotebookKernel) -> None:
    live.run("%%distributed\nprint('into a log')").check()
    live.run("%distributed start --devices 2 --name other").check()
    live.run("%%distributed\nprint('more')").check()
    assert live.run("%%distributed --name other\nNone").check().stderr == ""
    live.run("%distributed stop --name other").check()


def test_values_that_are_replaced_again_and_again_are_given_back(live: NotebookKernel) -> None:
    live.run("import gc, weakref\nwatched = []").check()
    for _ in range(3):
        live.run("data = torch.ones(1_000_000)\nwatched.append(weakref.ref(data))").check()
        assert live.run("%%distributed\nprint(data.sum().item())").check().stdout == "1000000.0\n"
    live.run("data = None").check()
    live.run("%%distributed\nprint(data)").check()
    assert live.value("(gc.collect(), [seen() is None for seen in watched])[1]") == [True] * 3


def test_a_session_in_python(kernel: NotebookKernel) -> None:
    kernel.run(f"import nbdist\n{SETUP}").check()
    kernel.run(
        """
        with nbdist.Session(devices=2) as session:
            shown = session.run_cell("losses.append(rank)\\nbig = torch.full((300_000,), rank)\\nlen(losses)")
            nothing = session.run_cell("x = 1;")
            session.push(rate=lambda: 5, extra=[1])
            calls = session.run(lambda: (rate(), extra))
            here = rate(), "extra" in globals()
            big_sum = session.pull("big", rank=1).sum().item()
            one, two = session.pull("x", "extra")
            errors = []
            for call in (lambda: session.pull("absent"), lambda: session.pull("x", rank=5)):
                try:
                    call()
                except nbdist.SessionError as error:
                    errors.append(str(error))
        """
    ).check()
    assert kernel.value("(shown, nothing, losses, x, 'big' in globals())") == (1, None, [0], 1, False)
    assert kernel.value("(calls, here)") == ([(5, [1])] * 2, (0.1, False))
    assert kernel.value("(big_sum, one, two)") == (300_000.0, 1, [1])
    assert kernel.value("errors") == [
        "pull('absent'): rank 0 has no absent.",
        "pull(rank=5): there are ranks 0 to 1.",
    ]


def test_memory_that_several_names_share(live: NotebookKernel) -> None:
    live.run("whole = torch.zeros(8)\nhead, again = whole[:4], whole.view(8)").check()
    live.run("%%distributed\nwhole, head, again").check()
    live.run("whole += 1").check()
    run = live.run("%%distributed\nprint(head.tolist())\nagain += 5").check()
    assert run.stdout == "[1.0, 1.0, 1.0, 1.0]\n"
    assert live.value("(whole.tolist(), head.tolist())") == ([6.0] * 8, [6.0] * 4)
    run = live.run("%%distributed\nprint(whole.sum().item(), head.sum().item())").check()
    assert (run.stdout, run.stderr) == ("48.0 24.0\n", "")


def test_tensors_that_the_ranks_made_inside_new_values(live: NotebookKernel) -> None:
    live.run("%%distributed\nparts = {'a': torch.ones(3) * rank}").check()
    live.run("box = [parts, parts['a']]").check()
    run = live.run("%%distributed\nprint(box[0]['a'] is box[1], box[1].tolist())").check()
    assert run.stdout == "[0] True [0.0, 0.0, 0.0]\n[1] True [1.0, 1.0, 1.0]\n"  # each rank's own
    live.run("%distributed push parts").check()
    run = live.run("%%distributed\nprint(parts['a'].tolist())").check()
    assert run.stdout == "[0.0, 0.0, 0.0]\n"


def test_push_undoes_what_any_rank_has_changed(live: NotebookKernel) -> None:
    live.run("%%distributed\nif rank == 1:\n    cfg['lr'] = 9\n    small.weight.data.zero_()").check()
    live.run("%distributed push cfg small").check()
    run = live.run("%%distributed\nprint(cfg['lr'], small.weight.abs().sum().item() > 0)").check()
    assert run.stdout == "0.1 True\n"


def test_a_model_made_anew_replaces_the_ranks_own_with_its_optimizer(live: NotebookKernel) -> None:
    train = "%%distributed\nlarge(torch.ones(2, 800)).sum().backward()\nadam.step()"
    live.run("adam = torch.optim.SGD(large.parameters(), lr=0.1)").check()
    live.run(train).check()
    live.run("large = torch.nn.Linear(800, 800)\nadam = torch.optim.SGD(large.parameters(), lr=0.1)").check()
    run = live.run("%%distributed\nprint(adam.param_groups[0]['params'][0] is large.weight)").check()
    assert run.stdout == "True\n"
    assert said(run, "sent to the ranks: ") == "adam, large"


def test_a_name_stays_wrapped_where_the_ranks_have_wrapped_it(live: NotebookKernel) -> None:
    live.run("%%distributed\nwrapped = torch.nn.parallel.DistributedDataParallel(small)").check()
    assert live.value("wrapped is small") is True
    live.run("%distributed push wrapped").check()
    run = live.run("%%distributed\nprint(type(wrapped).__name__, wrapped.module is small)").check()
    assert run.stdout == "DistributedDataParallel True\n"


def test_names_in_text_that_a_cell_evaluates(live: NotebookKernel) -> None:
    live.run("limit = 1").check()
    live.run("%%distributed\nlimit").check()
    live.run("limit = 7").check()
    assert live.run("%%distributed\nprint(eval('limit'))").check().stdout == "7\n"
    for at, look_up in enumerate(("globals()['limit']", "__main__.limit", "getattr(__main__, 'limit')")):
        live.run(f"import __main__\nlimit = {at}").check()
        assert live.run(f"%%distributed\nprint({look_up})").check().stdout == f"{at}\n"


def test_what_the_ranks_put_into_an_object_of_the_notebook(live: NotebookKernel) -> None:
    live.run("%%distributed\ncfg['log'] = []").check()
    live.run("log = cfg['log']").check()
    live.run("%%distributed\ncfg['log'].append(1)").check()
    assert live.value("(cfg['log'], log is cfg['log'])") == ([1], True)
    live.run("log.append(2)").check()
    run = live.run("%%distributed\nprint(cfg['log'])\ncfg['log'].append(3)").check()
    assert run.stdout == "[1, 2]\n"
    assert live.value("(cfg['log'], log is cfg['log'])") == ([1, 2, 3], True)


def test_pull_brings_the_optimizer_with_the_model(live: NotebookKernel) -> None:
    live.run("adam = torch.optim.Adam(large.parameters(), lr=0.1)").check()
    live.run("%%distributed\nlarge(torch.ones(2, 800)).sum().backward()\nadam.step()").check()
    assert live.value("len(adam.state)") == 0
    live.run("%distributed pull large").check()
    assert live.value("[state['step'].item() for state in adam.state.values()]") == [1.0, 1.0]


def test_a_change_under_a_name_that_the_ranks_have_bound_anew(live: NotebookKernel) -> None:
    live.run("%%distributed\ncfg = {'lr': 5, 'pad': torch.zeros(500_000)}").check()
    live.run("cfg['lr'] = 7").check()
    run = live.run("%%distributed\nprint(cfg['lr'])").check()
    assert run.stdout == "5\n"
    assert said(run, "cfg: changed in the notebook and on the ranks; the ranks keep theirs")


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_pull_brings_the_ranks_values_whatever_the_notebook_has_made_of_its_own(
    kernel: NotebookKernel, method: str
) -> None:
    kernel.run(
        """
        import torch
        model = torch.nn.Linear(2, 1)
        data = torch.zeros(100_000)
        losses = [1]
        """
    ).check()
    kernel.run(f"%distributed start --devices 2 --accelerator cpu --start-method {method}").check()
    kernel.run(
        "%%distributed\nwith torch.no_grad():\n    model.weight.fill_(5), model.bias.fill_(5), data.fill_(5)\n"
        "losses.append(5)\ncfg = {'lr': 5}\nname = 'of rank 1' if rank else 'of rank 0'"
    ).check()
    kernel.run("%distributed pull model,data").check()
    kernel.run(
        """
        old = model, losses, cfg
        model.weight.data.zero_()
        model.tag = "notebook"
        losses.append(0)
        cfg["lr"] = 0
        name = "notebook"
        data = torch.ones(3)
        """
    ).check()
    pulled = kernel.run("%distributed pull model,data,losses,cfg,name").check()
    assert pulled.stderr == ""
    assert kernel.value(
        "(model.weight.tolist(), hasattr(model, 'tag'), data.sum().item(), losses, cfg, name,"
        " [one is other for one, other in zip(old, (model, losses, cfg))])"
    ) == ([[5.0, 5.0]], False, 500_000.0, [1, 5], {"lr": 5}, "of rank 0", [True, True, True])
    kernel.run("name = 'notebook'").check()
    assert kernel.run("%distributed pull name --rank 1").check().stderr == ""
    assert kernel.value("name") == "of rank 1"
    kernel.run("del model, losses, cfg").check()
    kernel.run("%distributed pull model,losses,cfg").check()
    assert kernel.value("(model.bias.tolist(), losses, cfg)") == ([5.0], [1, 5], {"lr": 5})
    kernel.run("model = torch.nn.Linear(2, 1)\nlosses = []").check()
    kernel.run("%distributed pull model,losses").check()
    assert kernel.value("(model.bias.tolist(), losses)") == ([5.0], [1, 5])
    run = kernel.run("%%distributed\nlosses.append(6)\nmodel.bias.item(), losses").check()
    assert run.result == {"text/plain": "(5.0, [1, 5, 6])"}
    assert kernel.value("losses") == [1, 5, 6]
    kernel.run("cfg['lr'] = 7\ndel name").check()
    assert kernel.run("%%distributed\ncfg['lr'], 'name' in globals()").check().result == {
        "text/plain": "(7, False)"
    }
    kernel.run("%distributed stop\n%reload_ext nbdist").check()


def test_a_pull_of_what_is_not_there_is_an_error(live: NotebookKernel) -> None:
    run = live.run("%distributed pull absent")
    assert run.error is not None
    assert run.error.ename == "SessionError"
    assert "absent" in run.error.evalue


def test_a_wrapped_model_that_the_ranks_made_stays_wrapped(live: NotebookKernel) -> None:
    live.run("%%distributed\ntorch.manual_seed(0)\nmade = torch.nn.Linear(2, 1)").check()
    live.run("%%distributed\nddp = torch.nn.parallel.DistributedDataParallel(made)").check()
    live.run("with torch.no_grad(): made.weight.zero_()\nmade.eval(); head = made").check()
    run = live.run(
        "%%distributed\n"
        "print(type(ddp).__name__, ddp.module is made is head, made.training, made.weight.sum().item())"
    ).check()
    assert run.stdout == "DistributedDataParallel True False 0.0\n"
    assert said(run, "sent to the ranks: ") == "ddp, head"  # of one object the first name


def test_a_wrapped_model_that_is_sent_anew_says_so(live: NotebookKernel) -> None:
    live.run("%%distributed\nmade = torch.nn.Linear(2, 1)\nmade.own = [made] * rank").check()
    live.run("%%distributed\nddp = torch.nn.parallel.DistributedDataParallel(made)").check()
    live.run("with torch.no_grad(): made.weight.zero_()").check()
    run = live.run("%%distributed\nprint(ddp.weight.sum().item())").check()
    assert run.stdout == "0.0\n"
    assert said(run, "ddp was a wrapped model on the ranks and is now the notebook's")


def test_a_model_of_another_precision_has_it_on_the_ranks_with_its_gradients(live: NotebookKernel) -> None:
    live.run("small(torch.ones(1, 4)).sum().backward()").check()
    live.run("%%distributed\nsmall.weight.grad.dtype").check()
    live.run("small.double(), cfg.update(lr=2)").check()
    cell = "%%distributed\nprint(small.weight.dtype, small.weight.grad[0].tolist(), cfg['lr'])"
    assert live.run(cell).check().stdout == "torch.float64 [1.0, 1.0, 1.0, 1.0] 2\n"
    live.run("%%distributed\nsmall.half(), optimizer.zero_grad()").check()
    assert live.value("(str(small.weight.dtype), small.weight.grad is None)") == ("torch.float16", True)


def test_code_that_runs_while_a_value_is_made_finds_what_is_new_with_it(live: NotebookKernel) -> None:
    live.run(
        """
        import zlib

        def zhash(text):
            return zlib.crc32(text.encode())

        class Key:
            def __init__(self, text):
                self.text = text

            def __hash__(self):
                return zhash(self.text)

            def __eq__(self, other):
                return self.text == other.text

        table = {Key("a"): 1}
        cfg[Key("b")] = 2
        """
    ).check()
    run = live.run("%%distributed\nprint(table[Key('a')], cfg[Key('b')])").check()
    assert run.stdout == "1 2\n"


def test_what_the_notebook_makes_of_what_the_ranks_made_is_theirs(live: NotebookKernel) -> None:
    live.run(
        """
        %%distributed
        torch.manual_seed(rank)
        made, history, metrics = torch.nn.Linear(2, 1, bias=False), [], {"train": [[]]}
        """
    ).check()
    live.run(
        """
        made_sgd = torch.optim.SGD(made.parameters(), lr=1.0)
        net, seen, train = torch.nn.Sequential(made), history, metrics["train"]

        class Trainer:
            def __init__(self):
                self.model, self.history = made, history

            def step(self):
                made_sgd.zero_grad()
                self.model(torch.ones(1, 2)).sum().backward()
                made_sgd.step()
                self.history.append(len(self.history))

        trainer = Trainer()
        """
    ).check()
    run = live.run(
        """
        %%distributed
        before = made.weight.sum().item()
        trainer.step()
        train[0].append(1)
        print(round(before - net[0].weight.sum().item(), 4), trainer.model is made, seen is history, metrics)
        """
    ).check()
    assert run.stdout == "2.0 True True {'train': [[1]]}\n"
    assert said(run, "sent to the ranks: ") == "made_sgd, net, seen, train, trainer"
    assert live.value("(seen is history, history, metrics)") == (True, [0], {"train": [[1]]})
    live.run("history.append('notebook')").check()
    run = live.run("%%distributed\nprint(seen, trainer.history, trainer.model is net[0])").check()
    assert run.stdout == "[0, 'notebook'] [0, 'notebook'] True\n"


def test_views_of_what_the_ranks_made_are_views_there(live: NotebookKernel) -> None:
    live.run("import numpy").check()
    live.run("%%distributed\ntensor, array, box = torch.ones(3), numpy.ones(3), [torch.ones(2)]").check()
    live.run("tail, part, flat = tensor[1:], array[1:], box[0].view(2, 1)").check()
    cell = "%%distributed\ntail.mul_(2); part += 1; flat.fill_(5)\nprint(tensor, array, box)"
    expected = "tensor([1., 2., 2.]) [1. 2. 2.] [tensor([5., 5.])]\n"
    assert live.run(cell).check().stdout == expected
    assert live.run("print(tensor, array, box)").check().stdout == expected


def test_what_the_ranks_made_each_in_another_form_keeps_its_identity(live: NotebookKernel) -> None:
    live.run("%%distributed\nmade = [[rank]] * (rank + 1)\nview = torch.ones(2 + rank)").check()
    live.run("held, tail = {'made': made, 'first': made[0]}, view[1:]").check()
    run = live.run(
        "%%distributed\ntail += 1\nprint(held, held['made'] is made, held['first'] is made[0], view.tolist())"
    ).check()
    assert run.stdout == "{'made': [[0]], 'first': [0]} True True [1.0, 2.0]\n"
    assert said(run, "sent to the ranks: ") == "held, made, tail, view"


def test_what_a_name_led_to_is_followed_under_another_name(live: NotebookKernel) -> None:
    live.run("log = {}\nbox = {'log': log}").check()
    live.run("%%distributed\nbox['log']['loss'] = [1]\nmade = [[2]]").check()
    live.run("box, inner, made = {}, made[0], None").check()
    live.run("%%distributed\nlog['loss'].append(rank), inner.append(3), box, made").check()
    assert live.value("(log, inner)") == ({"loss": [1, 0]}, [2, 3])
    live.run("log['loss'].append('notebook')\ninner.append(4)").check()
    run = live.run("%%distributed\nprint(log, inner)").check()
    assert run.stdout == "{'loss': [1, 0, 'notebook']} [2, 3, 4]\n"


def test_training_a_wrapped_model_is_no_change_of_the_notebooks(live: NotebookKernel) -> None:
    live.run("%%distributed\nddp = torch.nn.parallel.DistributedDataParallel(small)").check()
    live.run("%%distributed\noptimizer").check()
    train = "%%distributed\nddp(torch.ones(1, 4)).sum().backward()\noptimizer.step()"
    live.run("small.weight.data.zero_()").check()
    assert said(live.run(train).check(), "sent to the ranks: ") == "ddp"
    assert [live.run(train).check().stderr for _ in range(3)] == [""] * 3


def test_what_came_from_another_rank_and_is_changed_here_is_sent(live: NotebookKernel) -> None:
    live.run("%%distributed --ranks 1\nmade, tensor = {'a': rank}, torch.zeros(2)").check()
    live.run("%%distributed\nown = [rank]").check()
    live.run("%distributed pull own --rank 1").check()
    cell = "%%distributed\nprint(made, tensor.tolist(), own)"
    assert live.run("%%distributed --ranks 1\nprint(made, own)").check().stderr == ""
    live.run("made['a'] = 7; tensor += 1; own.append('notebook')").check()
    run = live.run(cell).check()
    assert run.stdout == "{'a': 7} [1.0, 1.0] [1, 'notebook']\n"
    assert said(run, "sent to the ranks: ") == "made, own, tensor"
    live.run("made['a'] = 8; tensor += 1").check()
    assert live.run(cell).check().stdout == "{'a': 8} [2.0, 2.0] [1, 'notebook']\n"


def test_a_name_that_one_rank_has_deleted_comes_with_its_new_content(live: NotebookKernel) -> None:
    live.run("%%distributed\nlosses, cfg").check()
    live.run("%%distributed --ranks 1\ndel losses").check()
    live.run("losses.append(1)").check()
    run = live.run("%%distributed\nprint(losses)").check()
    assert run.stdout == "[1]\n"
    assert said(run, "sent to the ranks: ") == "losses"


def test_news_that_could_not_be_sent_come_with_the_next_work(live: NotebookKernel) -> None:
    live.run("%%distributed\nhistory, best, parts = [1], {'loss': 1}, [torch.ones(2)] * (1 + rank)").check()
    live.run(
        """
        import threading

        class Stops:
            def __reduce__(self):
                if self.armed:
                    self.armed = False
                    raise KeyboardInterrupt
                return Stops, ()

        history.append(2), best.update(loss=0), parts[0].fill_(5), cfg.update(lr=3)
        lock, stops, new = threading.Lock(), Stops(), 1
        stops.armed = True
        """
    ).check()
    run = live.run("%%distributed\nprint(history, best, parts, cfg, lock)")
    assert run.error is not None
    assert run.error.ename == "SessionError"
    run = live.run("%%distributed\nprint(history, best, parts, cfg, new, stops)")
    assert run.error is not None
    assert run.error.ename == "KeyboardInterrupt"
    run = live.run("%%distributed\nprint(history, best, parts[0].tolist(), cfg['lr'], new)").check()
    assert run.stdout == "[1, 2] {'loss': 0} [5.0, 5.0] 3 1\n"


def test_news_that_a_rank_could_not_take_come_again(live: NotebookKernel) -> None:
    live.run("%%distributed\nprint(cfg, losses)").check()
    live.run(
        """
        import os

        class Fussy:
            here = os.getpid()

            def __getstate__(self):
                return {"state": 1}

            def __setstate__(self, state):
                if os.getpid() != self.here:
                    raise RuntimeError("not here")

        cfg["lr"], fussy, zeta, alias = 2, Fussy(), "z", [0]
        os.environ["FUSSY"] = "1"
        """
    ).check()
    run = live.run("%%distributed\nprint(cfg, fussy, alias, zeta)")
    assert run.error is not None
    assert "SessionError: nothing ran here: fussy could not be made on the rank: not here" in run.error.evalue
    assert run.stdout == ""
    live.run("del fussy").check()
    run = live.run("%%distributed\nprint(cfg['lr'], alias, zeta, os.environ['FUSSY'])").check()
    assert run.stdout == "2 [0] z 1\n"
    assert said(run, "sent to the ranks: ") == "alias, cfg, zeta"
    assert live.run("%%distributed\nprint(cfg['lr'], alias, zeta)").check().stderr == ""
    live.run("cfg['lr'] = 3; alias.append(1)").check()
    assert live.run("%%distributed\nprint(cfg['lr'], alias)").check().stdout == "3 [0, 1]\n"
    live.run("del os.environ['FUSSY']").check()


def test_news_that_one_rank_could_not_take_come_again_to_all(live: NotebookKernel) -> None:
    live.run("%%distributed\nmade = [rank]\ncfg, losses").check()
    live.run(
        """
        class Fussy:
            def __setstate__(self, state):
                if __import__("torch").distributed.get_rank() == 1:
                    raise RuntimeError("not here")

            def __getstate__(self):
                return {"state": 1}

        cfg["lr"], fussy, zeta = 2, Fussy(), ["z"]
        made.append("notebook")
        """
    ).check()
    run = live.run("%%distributed\nzeta.append(rank), made.append(rank), cfg, fussy")
    assert run.error is not None
    assert "rank 1 of 2 failed: SessionError: nothing ran here: fussy could not be made" in run.error.evalue
    run = live.run("%%distributed\nprint(zeta, made, cfg['lr'])").check()
    assert run.stdout == "['z', 0] [0, 'notebook', 0] 2\n"
    live.run("zeta.append(5), made.append(5)").check()
    run = live.run("%%distributed\nprint(zeta, made)").check()
    assert run.stdout == "['z', 0, 5] [0, 'notebook', 0, 5]\n"


def test_what_one_rank_has_replaced_inside_a_value_is_reported_and_push_decides(live: NotebookKernel) -> None:
    live.run("%%distributed\nlosses").check()
    live.run("%%distributed\nif rank == 1:\n    cfg['sizes'] = [rank]\ncfg['own'] = {}").check()
    live.run("cfg['sizes'].append(3)").check()
    cell = "%%distributed\nprint(cfg['sizes'])"
    run = live.run(cell).check()
    assert run.stdout == "[0] [1, 2, 3]\n[1] [1]\n"
    assert "[1] nbdist: cfg: the notebook has changed something in it" in run.stderr
    live.run("%distributed push cfg").check()
    run = live.run(cell).check()
    assert (run.stdout, run.stderr) == ("[1, 2, 3]\n", "")
    live.run("cfg['sizes'].append(4)").check()
    run = live.run(cell).check()
    assert run.stdout == "[1, 2, 3, 4]\n"
    assert run.stderr == "nbdist: sent to the ranks: cfg\n"


def test_a_tensor_that_one_rank_has_replaced_is_reported_when_the_notebook_changes_it(
    live: NotebookKernel,
) -> None:
    live.run("held = {'w': torch.zeros(3), 'n': 1}").check()
    live.run("%%distributed\nif rank:\n    held['w'] = torch.ones(3)\nheld['n']").check()
    live.run("held['w'].fill_(7)").check()
    run = live.run("%%distributed\nprint(held['w'][0].item())").check()
    assert sorted(run.stdout.splitlines()) == ["[0] 7.0", "[1] 1.0"]
    assert "[1] nbdist: held: the notebook has changed something in it in whose place this rank" in run.stderr
    live.run("%distributed push held").check()
    assert live.run("%%distributed\nprint(held['w'][0].item())").check().stdout == "7.0\n"


FULLY_SHARD = "from torch.distributed.fsdp import fully_shard"
WEIGHT = "%%distributed\nw = {0}.weight\nprint(type({0}).__name__, getattr(w, 'to_local', lambda: w)()[0, 0].item())"


@pytest.mark.parametrize("made", ["in the notebook", "on the ranks"])
def test_a_model_that_the_ranks_have_sharded_and_the_notebook_changes(
    live: NotebookKernel, made: str
) -> None:
    magic = "%%distributed\n" if made == "on the ranks" else ""
    live.run(f"{magic}net = torch.nn.Linear(2, 2)\nnet.requires_grad_(False).weight.fill_(1)").check()
    live.run(f"%%distributed\n{FULLY_SHARD}\nfully_shard(net)").check()
    live.run("net.weight.fill_(7)").check()
    run = live.run(WEIGHT.format("net")).check()
    assert run.stdout == "FSDPLinear 1.0\n"
    assert "nbdist: net: the notebook has changed something in it in whose place this rank" in run.stderr
    assert said(live.run("%distributed push net").check(), "net was a sharded model on the ranks")
    assert live.run(WEIGHT.format("net")).check().stdout == "Linear 7.0\n"


def test_a_model_that_was_sharded_on_the_ranks_and_is_sent_anew_says_so(live: NotebookKernel) -> None:
    live.run(f"%%distributed\n{FULLY_SHARD}\nmade = torch.nn.Linear(2, 2)\nfully_shard(made)").check()
    live.run("%distributed pull made").check()
    live.run("made.requires_grad_(False).weight.fill_(5)").check()
    run = live.run(WEIGHT.format("made")).check()
    assert run.stdout == "Linear 5.0\n"
    assert said(run, "made was a sharded model on the ranks and is now the notebook's")


def test_a_tensor_that_ranks_have_given_other_memory_is_written_as_the_notebook_has_it(
    live: NotebookKernel,
) -> None:
    live.run(
        """
        import numpy as np
        every, one, turned = torch.ones(3), torch.ones(3), torch.ones(2, 3)
        apart, other = torch.ones(3), torch.ones(3)
        base = torch.arange(4.0)
        view, array = base[2:], np.ones(4)
        """
    ).check()
    live.run(
        """
        %%distributed
        every.data = torch.zeros(5)
        if rank == 1:
            one.data = torch.zeros(5, dtype=torch.int64)
            turned.data = turned.t().contiguous()
            base.data = torch.zeros(7)
            apart.data = other.data
            array.resize(9, refcheck=False)
        view.sum()
        """
    ).check()
    live.run(
        """
        every.fill_(7), one.fill_(6), turned.copy_(torch.arange(6.0).reshape(2, 3))
        base.fill_(4), view.fill_(2), apart.fill_(3), other.fill_(5)
        array[:] = 8
        """
    ).check()
    cell = "%%distributed\nprint(every, one, turned.tolist(), apart, other, base, view, array, sep='\\n')\nbase[3] = 0\nprint(view)"
    run = live.run(cell).check()
    assert run.stdout.splitlines() == [
        "tensor([7., 7., 7., 7., 7.])",
        "tensor([6., 6., 6.])",
        "[[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]",
        "tensor([3., 3., 3.])",
        "tensor([5., 5., 5.])",
        "tensor([4., 4., 2., 2.])",
        "tensor([2., 2.])",
        "[8. 8. 8. 8.]",
        "tensor([2., 0.])",
    ]
    assert live.value("view.tolist()") == [2.0, 0.0]


def test_a_part_of_a_flat_parameter_is_left_alone(live: NotebookKernel) -> None:
    live.run("net = torch.nn.Linear(4, 2)").check()
    live.run(
        """
        %%distributed
        from torch.distributed.fsdp import FullyShardedDataParallel
        fsdp = FullyShardedDataParallel(net, use_orig_params=True, device_id=torch.device('cpu'))
        before = [p.tolist() for p in fsdp.parameters()]
        """,
        timeout_s=60,
    ).check()
    live.run("with torch.no_grad(): net.weight.fill_(7.0)").check()
    cell = "%%distributed\nprint(before == [p.tolist() for p in fsdp.parameters()], fsdp(torch.ones(1, 4)).shape)"
    for push in ("pass", "%distributed push net"):
        told = live.run(push).check().stderr
        run = live.run(cell).check()
        assert run.stdout == "True torch.Size([1, 2])\n"
        assert "net: what the notebook has changed in it is not written here" in told + run.stderr


def test_memory_that_another_tensor_had_before(live: NotebookKernel) -> None:
    live.run(
        """
        import ctypes
        block = (ctypes.c_float * 3)()  # in the place of malloc, which gives free memory out again
        former, base = torch.frombuffer(block, dtype=torch.float32), torch.arange(4.0)
        view = base[2:]
        """
    ).check()
    live.run("%%distributed\nformer, base, view").check()
    live.run(
        """
        former.data, base.data = torch.ones(3), torch.ones(4)
        new = torch.frombuffer(block, dtype=torch.float32)
        view.fill_(5)
        """
    ).check()
    assert (
        live.run("%%distributed\nprint(new, view)").check().stdout
        == "tensor([0., 0., 0.]) tensor([5., 5.])\n"
    )
    live.run("new.fill_(7)").check()
    run = live.run("%%distributed\nprint(new)").check()
    assert run.stdout == "tensor([7., 7., 7.])\n"
    assert said(run, "sent to the ranks: ") == "new"


EMA = """
import numpy
module = torch.nn.Linear(2, 1)
torch.nn.init.ones_(module.weight), torch.nn.init.zeros_(module.bias)
shadow = {name: torch.full_like(p.data, 5.0) for name, p in module.named_parameters()}
backup = {}

def apply_shadow():
    for name, p in module.named_parameters():
        backup[name], p.data = p.data, shadow[name]

def restore():
    for name, p in module.named_parameters():
        p.data = backup[name]
"""


@pytest.mark.parametrize("first", ["", "%%distributed\n"])
def test_tensors_that_are_put_elsewhere_are_so_on_both_sides(live: NotebookKernel, first: str) -> None:
    second = "" if first else "%%distributed\n"
    live.run(EMA).check()
    state = (
        "print(module.weight.tolist(), shadow['weight'].tolist(), module.weight.data_ptr() == {}.data_ptr())"
    )
    live.run(f"{first}apply_shadow()").check()
    run = live.run(second + state.format("shadow['weight']")).check()
    assert run.stdout == "[[5.0, 5.0]] [[5.0, 5.0]] True\n"
    live.run(f"{second}restore()\nmodule.weight.data.mul_(3)").check()
    for cell in ("", "%%distributed\n"):
        run = live.run(cell + state.format("backup['weight']")).check()
        assert run.stdout == "[[3.0, 3.0]] [[5.0, 5.0]] True\n"
    live.run(
        f"{first}flat = torch.zeros(3)\ntorch.nn.utils.vector_to_parameters(flat, module.parameters())"
    ).check()
    live.run(f"{second}flat += 7").check()
    live.run(f"{second}module.bias.data = module.weight.data[0, :1]").check()
    run = live.run(f"{first}flat[0] = 1\nprint(module.weight.tolist(), module.bias.tolist(), flat)").check()
    assert run.stdout == "[[1.0, 7.0]] [1.0] tensor([1., 7., 7.])\n"
    live.run(f"{first}module.weight.data = module.weight.data.clone()\nflat.zero_()").check()
    for cell in ("", "%%distributed\n"):
        run = live.run(f"{cell}print(module.weight.tolist(), module.bias.tolist(), flat)").check()
        assert run.stdout == "[[1.0, 7.0]] [0.0] tensor([0., 0., 0.])\n"


def test_a_new_view_of_what_has_changed_shows_the_change(live: NotebookKernel) -> None:
    """The cell reads the view alone."""
    live.run("import numpy\ntensor, array = torch.zeros(3), numpy.zeros(3)").check()
    live.run("%%distributed\ntensor, array").check()
    live.run("tensor.fill_(5), array.fill(5)\nview, on_it = tensor[:2], torch.from_numpy(array)[1:]").check()
    run = live.run("%%distributed\nprint(view.tolist(), on_it.tolist())").check()
    assert run.stdout == "[5.0, 5.0] [5.0, 5.0]\n"
    assert said(run, "sent to the ranks: ") == "array, on_it, tensor, view"


def test_a_storage_that_grows_stays_one_for_all_that_look_at_it(live: NotebookKernel) -> None:
    live.run("grid = torch.zeros(2, 2)\nrows = list(grid)").check()
    live.run("%%distributed\ngrid, rows").check()
    live.run("%%distributed\ngrid.resize_(3, 2)[2] = 4").check()
    run = live.run("rows[1].fill_(3)\nprint(grid.tolist())").check()
    assert run.stdout == "[[0.0, 0.0], [3.0, 3.0], [4.0, 4.0]]\n"
    run = live.run("%%distributed\nrows[0].fill_(1)\nprint(grid.tolist())").check()
    assert run.stdout == "[[1.0, 1.0], [3.0, 3.0], [4.0, 4.0]]\n"


def test_a_hook_that_a_cell_removes_is_removed_in_the_notebook(live: NotebookKernel) -> None:
    """The cell reads its handle alone."""
    live.run("calls = []\nhandle = small.register_forward_hook(lambda *_: calls.append(1))").check()
    live.run("%%distributed\nsmall(torch.ones(1, 4))").check()
    live.run("%%distributed\nhandle.remove()").check()
    assert live.run("small(torch.ones(1, 4))\nprint(calls)").check().stdout == "[1]\n"


def test_a_view_of_what_stays_on_the_ranks_stays_with_it(live: NotebookKernel) -> None:
    live.run("whole = torch.zeros(1_000_000)").check()
    live.run("%%distributed\nwhole.fill_(5)").check()
    run = live.run("%%distributed\nhead, box = whole[:2], [whole[1:3]]\nwhole[:1]").check()
    assert re.findall(r"(\w+) \(\w+, \d+ bytes\)", said(run, "on the ranks only: ")) == ["box", "head"]
    assert run.result == {"text/plain": "tensor([5.])"}
    assert live.value("'head' in globals() or 'box' in globals()") is False
    live.run("%distributed pull head").check()
    assert live.run("print(head, whole[-1:])").check().stdout == "tensor([5., 5.]) tensor([5.])\n"


def test_a_mapped_file_is_the_same_file_on_both_sides(live: NotebookKernel) -> None:
    live.run(
        """
        import numpy
        mapped = numpy.memmap("numbers", dtype="int64", mode="w+", shape=(2, 3))
        numpy.save("array.npy", numpy.arange(4))
        read, row = numpy.load("array.npy", mmap_mode="r"), mapped[1]
        """
    ).check()
    run = live.run(
        """
        %%distributed
        row[0] = 5
        mapped[0, 2] = 7
        mapped.flush()
        print(read.tolist(), type(read).__name__, row.base is mapped)
        again = numpy.memmap("more", dtype="int64", mode="w+", shape=2)
        again[0] = 3
        """
    ).check()
    assert run.stdout == "[0, 1, 2, 3] memmap True\n"
    there = "numpy.fromfile('numbers', 'int64').tolist(), numpy.fromfile('more', 'int64').tolist()"
    assert live.run(f"again[1] = 4\nprint(row, mapped.tolist(), {there})").check().stdout == (
        "[5 0 0] [[0, 0, 7], [5, 0, 0]] [0, 0, 7, 5, 0, 0] [3, 4]\n"
    )
    assert live.run("%%distributed\nprint(again)").check().stdout == "[3 4]\n"


def test_a_tensor_on_an_array_that_comes_after_it(live: NotebookKernel) -> None:
    live.run("import numpy\nz = numpy.zeros(3)\na = torch.from_numpy(z)").check()
    run = live.run("%%distributed\na += 1\nz[0] = 5\nprint(a.tolist(), z)").check()
    assert run.stdout == "[5.0, 1.0, 1.0] [5. 1. 1.]\n"
    assert live.run("z[1] = 7\nprint(a.tolist())").check().stdout == "[5.0, 7.0, 1.0]\n"
