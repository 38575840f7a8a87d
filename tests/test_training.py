"""The training helpers: under torchrun, in ranks that torch.multiprocessing spawned, in a plain process.

Loaders, seeds and ranks read torchrun's environment, so most tests of these set it and play one rank after
the other. What needs ranks that talk runs this file under torchrun: see `in_ranks`.
"""

from __future__ import annotations

import copy
import dataclasses
import gc
import inspect
import os
import pickle
import random
import subprocess
import sys
import warnings
from collections import Counter, OrderedDict, namedtuple
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from nbdist.digits import digits_net, load_digits
from nbdist.errors import OptionError
from nbdist.training import is_rank_zero, mean, print_rank_zero, seed_everything, setup, setup_loader

Become = Callable[..., None]


# What runs in ranks. ------------------------------------------------------------------------------


def in_ranks(body: str, out: Path, ranks: int = 2, *, spawned: bool = False) -> list[Any]:
    """What ``body``, a function of this file without arguments, returned on each rank."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    command = [sys.executable, *([] if spawned else torchrun), __file__, body, str(out)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent), "OMP_NUM_THREADS": "1"}
    # torchrun asks for names of addresses, and waits minutes for a name server that does not answer.
    environment["RES_OPTIONS"] = "attempts:1 timeout:1"
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return [pickle.loads((out / f"{rank}.pickle").read_bytes()) for rank in range(ranks)]


def be_a_rank(rank: int, body: str, out: str) -> None:
    """Run one of the bodies, leave its result in a file and the process group as a user should."""
    warnings.simplefilter("error")
    (Path(out) / f"{rank}.pickle").write_bytes(pickle.dumps(globals()[body]()))
    gc.collect()  # a process group ends its threads when the last model that uses it is gone
    dist.destroy_process_group()


def spawned_rank(rank: int, body: str, out: str, model: nn.Module) -> None:
    global spawned_model
    spawned_model = model
    dist.init_process_group("gloo", init_method=f"file://{out}/rendezvous", rank=rank, world_size=2)
    be_a_rank(rank, body, out)


spawned_model: nn.Module


def train(model: nn.Module, optimizer: torch.optim.Optimizer, batches: Any) -> list[list[int]]:
    """One epoch; returns which examples made each step."""
    seen = []
    for images, labels, indices in batches:
        optimizer.zero_grad()
        cross_entropy(model(images), labels).backward()
        optimizer.step()
        seen.append(indices.tolist())
    return seen


def numbered_digits() -> TensorDataset:
    digits, _ = load_digits()
    return TensorDataset(*digits.tensors, torch.arange(len(digits)))


def fresh_training(seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = digits_net()
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def weights(model: nn.Module) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


def body_of_training() -> dict[str, Any]:
    """Two epochs by torchrun alone: nobody initialised the process group, and every rank starts elsewhere."""
    given, given_optimizer = fresh_training(seed=int(os.environ["RANK"]))
    model, optimizer = setup(given, given_optimizer)
    loader = setup_loader(DataLoader(numbered_digits(), batch_size=32, shuffle=True))
    with_workers = DataLoader(numbered_digits(), batch_size=500, num_workers=1, persistent_workers=True)
    assert len(next(iter(with_workers))[1]) == 500  # its workers run before it is set up
    workers = setup_loader(with_workers)
    strided = torch.ones(2, 3).t() * dist.get_rank()
    return {
        "steps": [train(model, optimizer, loader) for _ in range(2)],
        "weights": weights(model.module),
        "kept": model.module is given and optimizer is given_optimizer,
        "by_workers": [[len(labels) for _, labels, _ in workers] for _ in range(2)],
        "loaders": [loader, workers],
        "means": [
            mean(dist.get_rank()),
            mean(torch.tensor([1.0, 3.0 * dist.get_rank()], dtype=torch.float64)),
            mean(torch.tensor(200 + dist.get_rank(), dtype=torch.uint8)),
            mean(torch.tensor(60000.0, dtype=torch.float16)),
            mean(strided),
        ],
        "averaged": strided,
    }


def body_of_shared_memory() -> dict[str, Any]:
    """One step with rates that differ by rank: in memory that both ranks wrote, they would end alike."""
    optimizer = torch.optim.SGD(spawned_model.parameters(), lr=float(dist.get_rank()))
    model, optimizer = setup(spawned_model, optimizer)
    before = weights(model)
    model(torch.ones(1, 3)).sum().backward()
    dist.barrier()
    optimizer.step()
    dist.barrier()
    return {"moved": [not torch.equal(*pair) for pair in zip(before, weights(model), strict=True)]}


def body_on_cuda() -> dict[str, Any]:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    model, optimizer = setup(model, optimizer)
    loader = setup_loader(DataLoader(torch.ones(4, 3), batch_size=2, pin_memory=True))
    for batch in loader:
        model(batch).sum().backward()
        optimizer.step()
    state = optimizer.state[next(model.parameters())]
    return {
        "ids": model.device_ids,
        "weights": next(model.parameters()).device,
        "batch": batch.device,
        "step": (state["step"].device.type, state["step"].item()),
        "average": state["exp_avg"].device,
        "mean": mean(3),
        "mean_on_cpu": mean(torch.ones(2)).device.type,
    }


# What is tested. ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What `body_of_training` returned on each of two ranks."""
    return in_ranks("body_of_training", tmp_path_factory.mktemp("ranks"))


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """As in the ranks: the nets are too small for more, which only wait for each other on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def become(monkeypatch: pytest.MonkeyPatch) -> Become:
    """Make this process one rank of several, as torchrun does, without a process group."""

    def become(rank: int, world_size: int = 2) -> None:
        for name, value in {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world_size}.items():
            monkeypatch.setenv(name, str(value))

    return become


@pytest.fixture
def one_rank_group() -> Iterator[None]:
    """A process group of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    gc.collect()
    dist.destroy_process_group()


class TestTwoRanks:
    def test_they_reach_the_weights_of_one_process_with_the_double_batch(self, trained: Any) -> None:
        model, optimizer = fresh_training(seed=0)
        start, data = weights(model), numbered_digits()
        for epoch in range(2):
            halves = zip(trained[0]["steps"][epoch], trained[1]["steps"][epoch], strict=True)
            train(model, optimizer, (data[first + second] for first, second in halves))
        for by_one, by_rank, by_other, old in zip(
            weights(model), trained[0]["weights"], trained[1]["weights"], start, strict=True
        ):
            torch.testing.assert_close(by_rank, by_one, atol=1e-5, rtol=0)
            assert torch.equal(by_rank, by_other)
            assert (by_one - old).abs().max() > 1e-2  # there was something to agree on

    def test_every_step_has_32_examples_of_each_rank_and_every_example_comes_once(self, trained: Any) -> None:
        for rank in trained:
            assert [[len(step) for step in epoch] for epoch in rank["steps"]] == [[32] * 21 + [2]] * 2
        for epoch in range(2):
            seen = Counter(index for rank in trained for step in rank["steps"][epoch] for index in step)
            assert set(seen) == set(range(1347))
            assert seen.total() == 1348  # an odd number of examples: one of them fills up the last step

    def test_an_epoch_has_an_order_of_its_own(self, trained: Any) -> None:
        first, second = trained[0]["steps"]
        assert first != second

    def test_model_and_optimizer_are_the_given_ones(self, trained: Any) -> None:
        assert [rank["kept"] for rank in trained] == [True, True]

    def test_loaders_with_workers_serve_each_epoch(self, trained: Any) -> None:
        assert [rank["by_workers"] for rank in trained] == [[[500, 174]] * 2] * 2

    def test_a_mean_is_over_ranks_and_of_the_same_kind(self, trained: Any) -> None:
        for number_of_rank, rank in enumerate(trained):
            number, tensor, small_integers, half, strided = rank["means"]
            assert (type(number), number) == (float, 0.5)
            torch.testing.assert_close(tensor, torch.tensor([1.0, 1.5], dtype=torch.float64))
            torch.testing.assert_close(small_integers, torch.tensor(200.5))
            torch.testing.assert_close(half, torch.tensor(60000.0, dtype=torch.float16))
            torch.testing.assert_close(strided, torch.full((3, 2), 0.5))
            assert torch.equal(rank["averaged"], torch.full((3, 2), float(number_of_rank)))  # left as it was

    def test_a_loader_that_comes_back_to_a_plain_process_serves_all_data_where_it_lies(
        self, trained: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("NBDIST_DEVICE", "meta")
        loader, with_workers = trained[1]["loaders"]
        assert (len(loader), loader.batch_size) == (43, 32)
        assert (len(with_workers), with_workers.num_workers) == (3, 1)
        batches = list(loader)
        assert sorted(index for _, _, indices in batches for index in indices.tolist()) == list(range(1347))

    def test_a_model_that_came_in_shared_memory_is_trained_by_each_rank_alone(self, tmp_path: Path) -> None:
        first, second = in_ranks("body_of_shared_memory", tmp_path, spawned=True)
        assert first["moved"] == [False, False]  # its learning rate is 0
        assert second["moved"] == [True, True]


@pytest.mark.gpu
def test_model_optimizer_and_batches_are_on_the_gpu(tmp_path: Path) -> None:
    gpu = torch.device("cuda", 0)
    (rank,) = in_ranks("body_on_cuda", tmp_path, ranks=1)
    assert rank["ids"] == [0]
    assert (rank["weights"], rank["batch"], rank["average"]) == (gpu, gpu, gpu)
    assert rank["step"] == ("cpu", 3)
    assert (rank["mean"], rank["mean_on_cpu"]) == (3.0, "cpu")


class TestSetup:
    def test_a_plain_process_moves_and_wraps_nothing(self) -> None:
        model, optimizer = fresh_training(seed=0)
        other = torch.optim.Adam(model.parameters())
        assert setup(model) is model
        assert setup(model, optimizer, other) == (model, optimizer, other)
        assert setup(model, optimizer=optimizer) == (model, optimizer)

    def test_a_group_wraps_with_the_options_of_ddp(self, one_rank_group: None) -> None:
        model = setup(nn.Linear(2, 2), gradient_as_bucket_view=True)
        assert isinstance(model, DistributedDataParallel)
        assert model.gradient_as_bucket_view

    @pytest.mark.parametrize(
        ("strategy", "unused", "static"),
        [
            ("ddp", False, False),
            ("ddp_find_unused_parameters_true", True, False),
            ("ddp_static_graph", False, True),
        ],
    )
    @pytest.mark.parametrize("by_run", [False, True])
    def test_strategies_set_the_option_of_ddp(
        self,
        one_rank_group: None,
        monkeypatch: pytest.MonkeyPatch,
        strategy: str,
        unused: bool,
        static: bool,
        by_run: bool,
    ) -> None:
        monkeypatch.setenv("NBDIST_STRATEGY", strategy if by_run else "ignored, for one was passed")
        model: Any = setup(nn.Linear(2, 2), strategy=None if by_run else strategy)
        assert (model.find_unused_parameters, model.static_graph) == (unused, static)

    def test_a_model_with_nothing_to_train_is_not_wrapped(self, one_rank_group: None) -> None:
        for model in (nn.ReLU(), nn.Linear(2, 2).requires_grad_(False)):
            assert setup(model) is model

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"strategy": "fsdp"}, r"strategy='fsdp'; allowed: 'ddp', 'ddp_find.*leave strategy out"),
            ({"precision": "bf16-mixed"}, r"precision='bf16-mixed'; allowed: '32-true'"),
            ({"bucket_size": 25}, r"no option bucket_size=25; allowed .* bucket_cap_mb,"),
            ({"device_ids": [0]}, r"device_ids .* Leave it out"),
        ],
    )
    def test_wrong_options_are_refused_in_a_plain_process_too(self, options: Any, message: str) -> None:
        with pytest.raises(OptionError, match=message):
            setup(nn.Linear(2, 2), **options)

    def test_a_wrong_default_of_the_run_is_called_that(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("NBDIST_PRECISION", "8-bit")
        with pytest.raises(OptionError, match=r"'8-bit' \(the run's --precision\)"):
            setup(nn.Linear(2, 2))

    def test_a_wrapped_model_is_refused(self, one_rank_group: None) -> None:
        for model in (setup(nn.Linear(2, 2)), DataParallel(nn.Linear(2, 2))):
            with pytest.raises(OptionError, match=f"already wrapped, in {type(model).__name__}"):
                setup(model)

    def test_an_optimizer_that_would_train_nothing_is_refused(self) -> None:
        model, other = nn.Linear(2, 2), nn.Linear(2, 2)
        with pytest.raises(OptionError, match="SGD optimizer holds none"):
            setup(model, torch.optim.SGD(other.parameters()))

    def test_a_move_that_replaces_parameters_is_refused_with_an_optimizer(self) -> None:
        model = nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters())
        torch.__future__.set_overwrite_module_params_on_conversion(True)
        try:
            with pytest.raises(OptionError, match=r"made new parameters.*setup\(model\) first"):
                setup(model, optimizer)
        finally:
            torch.__future__.set_overwrite_module_params_on_conversion(False)

    @pytest.mark.parametrize("arguments", [("net",), (nn.Linear(1, 1), [1]), (nn.Linear(1, 1), None, "adam")])
    def test_other_things_than_models_and_optimizers_are_refused(self, arguments: Any) -> None:
        with pytest.raises(TypeError, match=r"setup\(\) takes .* not (str|list|NoneType)"):
            setup(*arguments)


class TestRanks:
    def test_only_rank_zero_prints(self, become: Become, capsys: pytest.CaptureFixture[str]) -> None:
        assert is_rank_zero()
        print_rank_zero("alone", 1, sep="-")
        for rank in range(2):
            become(rank)
            assert is_rank_zero() == (rank == 0)
            print_rank_zero("rank", rank, end=";")
        assert capsys.readouterr().out == "alone-1\nrank 0;"

    def test_a_seed_gives_the_same_numbers_again_and_others_on_other_ranks(self, become: Become) -> None:
        def drawn(rank: int, **options: bool) -> tuple[int, list[float]]:
            become(rank)
            used = seed_everything(42, **options)
            return used, [random.random(), numpy.random.random(), torch.rand(()).item()]

        assert drawn(0) == drawn(0)
        assert (drawn(0)[0], drawn(1)[0]) == (42, 43)
        assert all(one != other for one, other in zip(drawn(0)[1], drawn(1)[1], strict=True))
        assert drawn(1, per_rank=False) == drawn(0, per_rank=False)

    @pytest.mark.parametrize("seed", [-1, 2**32 - 1, 1.5, "7", True, None])
    def test_a_wrong_seed_is_refused_alike_on_every_rank(self, become: Become, seed: Any) -> None:
        for rank in range(2):
            become(rank)
            with pytest.raises(OptionError, match=rf"seed={seed!r} .* 0 to 4294967294"):
                seed_everything(seed)

    def test_the_mean_of_one_rank_is_its_value(self) -> None:
        assert mean(3) == 3.0
        assert mean(numpy.float32(0.5)) == 0.5
        value = torch.ones(2, requires_grad=True)
        alone = mean(value)
        assert torch.equal(alone, value)
        assert not alone.requires_grad
        assert alone.data_ptr() != value.data_ptr()
        with pytest.raises(TypeError, match="not list"):
            mean([1.0])  # type: ignore[call-overload]


def shares(become: Become, loader: DataLoader[Any], world_size: int = 2) -> list[list[Any]]:
    """The batches of one epoch, as lists of numbers, on each rank."""
    found = []
    for rank in range(world_size):
        become(rank, world_size)
        found.append([batch.tolist() for batch in setup_loader(copy.copy(loader))])
    return found


def flat(batches: list[list[int]]) -> list[int]:
    return [index for batch in batches for index in batch]


class Odd(Sampler[int]):
    """A sampler of a user's own."""

    def __init__(self) -> None:
        self.epochs: list[int] = []

    def __iter__(self) -> Iterator[int]:
        return iter(range(1, 10, 2))

    def __len__(self) -> int:
        return 5

    def set_epoch(self, epoch: int) -> None:
        self.epochs.append(epoch)


class TestLoaderOrder:
    @pytest.mark.parametrize("world_size", [2, 3, 4])
    def test_every_example_comes_once_and_the_first_fill_up(self, become: Become, world_size: int) -> None:
        in_order = shares(become, DataLoader(list(range(10)), batch_size=2), world_size)
        merged = [index for turn in zip(*map(flat, in_order), strict=True) for index in turn]
        assert merged == [*range(10), *range(-10 % world_size)]
        shuffled = shares(become, DataLoader(list(range(10)), batch_size=2, shuffle=True), world_size)
        merged = [index for turn in zip(*map(flat, shuffled), strict=True) for index in turn]
        assert sorted(merged[:10]) == list(range(10)) != merged[:10]
        assert merged[10:] == merged[: len(merged) - 10]

    def test_epochs_count_on_from_where_they_are_set(self, become: Become) -> None:
        become(1)
        loader = setup_loader(DataLoader(list(range(40)), batch_size=40, shuffle=True))
        orders = [next(iter(loader)).tolist() for _ in range(3)]
        assert len(set(map(tuple, orders))) == 3
        loader.set_epoch(1)
        assert [next(iter(loader)).tolist() for _ in range(2)] == orders[1:]
        loader.sampler.set_epoch(1)  # as tutorials do
        assert [next(iter(loader)).tolist() for _ in range(2)] == orders[1:]
        loader.sampler.set_epoch(7)
        loader.set_epoch(2)  # said last
        assert next(iter(loader)).tolist() == orders[2]
        again = setup_loader(loader)
        again.sampler.set_epoch(2)
        assert next(iter(again)).tolist() == orders[2]

    def test_a_generator_decides_the_order(self, become: Become) -> None:
        become(0)

        def two_epochs(seed: int) -> list[Any]:
            generator = torch.Generator().manual_seed(seed)
            loader = setup_loader(DataLoader(list(range(50)), 25, shuffle=True, generator=generator))
            return [batch.tolist() for _ in range(2) for batch in loader]

        assert two_epochs(2**64 - 1) == two_epochs(2**64 - 1)
        assert two_epochs(1) != two_epochs(2)

    @pytest.mark.parametrize(
        "sampler",
        [
            SubsetRandomSampler([3, 5, 7, 9]),
            [3, 5, 7, 9],
            SequentialSampler(range(4)),
            RandomSampler(range(4)),
        ],
    )
    def test_samplers_of_a_part_share_out_that_part(self, become: Become, sampler: Any) -> None:
        drawn = [flat(share) for share in shares(become, DataLoader(list(range(10)), sampler=sampler))]
        part = [3, 5, 7, 9] if isinstance(sampler, (list, SubsetRandomSampler)) else [0, 1, 2, 3]
        assert sorted(drawn[0] + drawn[1]) == part
        assert len(drawn[0]) == len(drawn[1])

    @pytest.mark.parametrize(
        "sampler",
        [
            WeightedRandomSampler([0.0, 1.0, 1.0, 0.0], num_samples=200),
            RandomSampler([1, 2], replacement=True, num_samples=200),
        ],
    )
    def test_samplers_that_draw_again_share_out_their_draws(self, become: Become, sampler: Any) -> None:
        drawn = [flat(share) for share in shares(become, DataLoader([0, 1, 2, 3], sampler=sampler))]
        assert [len(share) for share in drawn] == [100, 100]
        assert drawn[0] != drawn[1]
        assert len(set(drawn[0] + drawn[1])) == 2

    def test_a_distributed_sampler_is_kept(self, become: Become) -> None:
        class Reversed(BatchSampler):
            def __iter__(self) -> Iterator[list[int]]:
                return (batch[::-1] for batch in super().__iter__())

        become(0)
        data = list(range(10))
        own: DistributedSampler[int] = DistributedSampler(data, num_replicas=5, rank=3, shuffle=False)
        alone = DataLoader(data, batch_size=2, sampler=own)
        batched = DataLoader(data, batch_sampler=Reversed(own, 2, False))
        assert [batch.tolist() for batch in setup_loader(alone)] == [[3, 8]]
        assert [batch.tolist() for batch in setup_loader(batched)] == [[8, 3]]

    @pytest.mark.parametrize("batched", [False, True])
    def test_a_sampler_of_a_users_own_is_refused_unless_it_shares_itself(
        self, become: Become, batched: bool
    ) -> None:
        sampler = Odd()
        options: Any = {"batch_sampler": BatchSampler(sampler, 2, False)} if batched else {"sampler": sampler}
        loader = DataLoader(list(range(10)), **options)
        assert flat([batch.tolist() for batch in setup_loader(loader)]) == [1, 3, 5, 7, 9]  # one rank
        become(0)
        with pytest.raises(
            OptionError, match=r"sampler=Odd cannot be shared out.*use_distributed_sampler=False"
        ):
            setup_loader(loader)
        kept = setup_loader(loader, use_distributed_sampler=False)
        sampler.epochs.clear()
        assert [flat([batch.tolist() for batch in kept]) for _ in range(2)] == [[1, 3, 5, 7, 9]] * 2
        assert sampler.epochs == [0, 1]

    def test_an_iterable_dataset_is_left_alone_with_one_warning(self, become: Become) -> None:
        class Stream(IterableDataset[int]):
            def __iter__(self) -> Iterator[int]:
                return iter(range(4))

        become(0)
        with pytest.warns(UserWarning, match="Stream itself yields a different part") as seen:
            loader = setup_loader(DataLoader(Stream(), batch_size=2))
        assert len(seen) == 1
        assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3]]
        setup_loader(DataLoader(Stream()), use_distributed_sampler=False)  # a warning would be an error


class TestLoaderSettings:
    def test_every_setting_stays(self, become: Become) -> None:
        class Own(DataLoader[int]):
            flavour = "plain"

        chosen: dict[str, Any] = {
            "batch_size": 3, "num_workers": 2, "collate_fn": list, "drop_last": True, "timeout": 7,
            "worker_init_fn": print, "multiprocessing_context": "spawn", "generator": torch.Generator(),
            "prefetch_factor": 5, "persistent_workers": True, "in_order": False,
        }  # fmt: skip
        parameters = inspect.signature(DataLoader).parameters
        loader = Own(list(range(10)), **{name: chosen[name] for name in chosen if name in parameters})
        loader.flavour = "own"
        become(0)
        prepared = setup_loader(loader)
        for name in {"flavour", *parameters} - {"shuffle", "sampler", "batch_sampler"}:
            assert getattr(prepared, name) is getattr(loader, name), name
        assert len(prepared) == 1  # 5 examples of this rank in whole batches of 3
        assert isinstance(prepared.sampler, DistributedSampler)
        assert type(prepared.loader) is Own
        assert isinstance(loader.sampler, SequentialSampler)

    def test_batch_samplers_keep_their_settings(self, become: Become) -> None:
        whole = BatchSampler(RandomSampler(range(11)), batch_size=2, drop_last=True)
        batches = shares(become, DataLoader(list(range(11)), batch_sampler=whole))
        assert [[len(batch) for batch in share] for share in batches] == [[2, 2, 2]] * 2
        assert len(set(flat(batches[0]) + flat(batches[1]))) >= 11

    def test_without_batches_examples_come_one_by_one(self, become: Become) -> None:
        found = []
        for rank in range(2):
            become(rank)
            found.append(list(setup_loader(DataLoader([10, 11, 12, 13], batch_size=None))))
        assert found == [[10, 12], [11, 13]]

    def test_one_rank_gets_everything_by_its_own_sampler(self) -> None:
        loader = DataLoader(list(range(5)), batch_size=2, shuffle=True)
        prepared = setup_loader(loader)
        assert prepared.sampler is loader.sampler
        assert sorted(flat([batch.tolist() for batch in prepared])) == [0, 1, 2, 3, 4]

    def test_what_is_no_loader_is_refused(self) -> None:
        with pytest.raises(TypeError, match=r"not list.*DataLoader\(dataset"):
            setup_loader([1, 2])  # type: ignore[arg-type]

    def test_setting_up_again_is_for_the_ranks_of_now(self, become: Become) -> None:
        become(1)
        loader = setup_loader(DataLoader(list(range(4)), batch_size=4))
        assert [batch.tolist() for batch in loader] == [[1, 3]]
        become(3, world_size=4)
        assert [batch.tolist() for batch in setup_loader(loader)] == [[3]]
        assert [batch.tolist() for batch in loader] == [[3]]

    def test_an_unknown_attribute_is_missing(self) -> None:
        with pytest.raises(AttributeError, match="shuffel"):
            _ = setup_loader(DataLoader([1])).shuffel


Pair = namedtuple("Pair", ["left", "right"])


@dataclasses.dataclass(frozen=True)
class Record:
    image: torch.Tensor
    name: str


class Movable:
    def __init__(self, device: str = "cpu") -> None:
        self.device = torch.device(device)

    def to(self, device: Any) -> Movable:
        return Movable(device)


class TestBatchesOnTheDevice:
    @pytest.fixture(autouse=True)
    def on_meta(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("NBDIST_DEVICE", "meta")  # a device that every machine has beside its CPU

    def through_loader(self, batch: Any, **options: bool) -> Any:
        (moved,) = setup_loader(DataLoader([batch], batch_size=None, collate_fn=lambda one: one), **options)
        return moved

    def test_tensors_move_wherever_they_are(self) -> None:
        one = torch.ones(2)
        batch = OrderedDict(
            tensor=one, pair=Pair(one, "text"), nested=[(one, 1), {"deep": one}], record=Record(one, "a"),
            movable=Movable(), packed=nn.utils.rnn.pack_sequence([one]),
        )  # fmt: skip
        moved = self.through_loader(batch)
        tensors = (
            moved["tensor"], moved["pair"].left, moved["nested"][0][0], moved["nested"][1]["deep"],
            moved["record"].image, moved["movable"], moved["packed"].data,
        )  # fmt: skip
        assert {tensor.device.type for tensor in tensors} == {"meta"}
        assert (moved["pair"].right, moved["nested"][0][1], moved["record"].name) == ("text", 1, "a")
        assert [type(moved[key]) for key in moved] == [type(batch[key]) for key in batch]
        assert type(moved) is OrderedDict
        assert batch["tensor"].device.type == batch["record"].image.device.type == "cpu"

    def test_what_holds_no_tensor_is_passed_on(self) -> None:
        batch = {"names": ["a", "b"], "none": None, "set": {1}}
        assert self.through_loader(batch) is batch

    def test_they_stay_where_they_are_on_request(self) -> None:
        one = torch.ones(2)
        assert self.through_loader(one, move_to_device=False) is one


if __name__ == "__main__":
    body, out = sys.argv[1:]
    if "RANK" in os.environ:
        be_a_rank(int(os.environ["RANK"]), body, out)
    else:
        torch.multiprocessing.spawn(spawned_rank, (body, out, nn.Linear(3, 2)), nprocs=2)
