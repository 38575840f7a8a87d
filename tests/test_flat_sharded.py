"""Models in FullyShardedDataParallel, with their optimizers: whole and unwrapped after the cell."""

from __future__ import annotations

import pytest
from notebook_checks import assert_all
from notebook_kernel import NotebookKernel

SETUP = """
    import copy, torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Conv2d(2, 3, 3, bias=False).to(memory_format=torch.channels_last)
            self.norm = nn.BatchNorm2d(3)
            self.scale = nn.Parameter(torch.ones(1))
            self.one, self.other = nn.Linear(12, 12, bias=False), nn.Linear(12, 12)
            self.other.weight = self.one.weight
            self.last = nn.Linear(12, 5)

        def forward(self, x):
            x = torch.relu(self.norm(self.first(x))).flatten(1) * self.scale
            return self.last(self.other(self.one(x)))

    torch.manual_seed(0)
    model = Net()
    model.first.weight.note = "a filter"
    plain, same, parameters, inputs = copy.deepcopy(model), model, list(model.parameters()), torch.randn(6, 2, 4, 4)

    def loss(model):
        return model(inputs).pow(2).mean()

    def train(model, optimizer):
        for _ in range(2):
            optimizer.zero_grad()
            loss(model).backward()
            optimizer.step()
    """
# What FSDP itself says of them, at the end of the cell, by parameter name.
CELL = """
    import torch.distributed as dist
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
    from torch.distributed.fsdp import MixedPrecision, ShardingStrategy, StateDictType
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    new = copy.deepcopy(model)
    nested = ModuleWrapPolicy({{nn.Conv2d, nn.BatchNorm2d}})
    wrapped = FSDP(model, device_id=device, {options})
    new = FSDP(new, device_id=device, {options})
    optimizer = torch.optim.Adam(wrapped.parameters(), lr=0.1)
    of_new = torch.optim.SGD([{{"params": list(new.parameters()), "lr": 0.01, "momentum": 0.9}}])
    train(wrapped, optimizer)
    train(new, of_new)
    expected = []
    for each, its in ((wrapped, optimizer), (new, of_new)):
        with FSDP.state_dict_type(each, StateDictType.FULL_STATE_DICT):
            expected.append((each.state_dict(), FSDP.optim_state_dict(each, its)["state"]))
    """
# With use_orig_params on the CPU, torch's own gathering gives exp_avg_sq in the place of exp_avg.
SAME_STATE = """all(
    set(value) == set(before[name])
    and all(torch.equal(value[key], before[name][key]) for key in value.keys() - {not_told})
    for each, its, (_, before) in trained
    for name, value in ((name, its.state[parameter]) for name, parameter in each.named_parameters())
)"""
AS_IF_TRAINED_HERE = """all(
    torch.allclose(optimizer.state[own][key], value, rtol=1e-4, atol=1e-6)
    for own, plain in zip(model.parameters(), by_plain.state, strict=True)
    for key, value in by_plain.state[plain].items()
)"""
CHECKS = (
    "wrapped is model is same and type(new) is Net and 'FullyShard' not in repr(model) + repr(new)",
    "all(x is y for x, y in zip(model.parameters(), parameters, strict=True))",
    "all(own is kept for own, kept in zip(optimizer.param_groups[0]['params'], parameters, strict=True))",
    "all(type(parameter) is nn.Parameter and parameter.requires_grad for parameter in new.parameters())",
    "vars(parameters[0]) == {'note': 'a filter'} or vars(parameters[1]) == {'note': 'a filter'}",
    "all(not any('fsdp' in name for name in vars(module)) for m in (model, new) for module in m.modules())",
    "model.other.weight is model.one.weight and new.other.weight is new.one.weight",
    "model.first.weight.is_contiguous(memory_format=torch.channels_last)",
    """all(
        list(each.state_dict()) == list(before)
        and all(torch.equal(value, before[name]) for name, value in each.state_dict().items())
        for each, _, (before, _) in trained
    )""",
    "all(parameter.grad.shape == parameter.shape for each, *_ in trained for parameter in each.parameters())",
    SAME_STATE,
)
AND_THEN = (  # they can be trained on
    "[train(each, its) for each, its, _ in trained] == [None, None]",
    "[state['step'].item() for state in optimizer.state.values()] == [4.0] * 8",
)
NESTED = "auto_wrap_policy=nested"
HALF = "MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16, buffer_dtype=torch.bfloat16)"


@pytest.mark.parametrize("kept", [True, False], ids=["use_orig_params", "flat"])
@pytest.mark.parametrize(
    ("devices", "options"),
    [
        pytest.param(3, NESTED, id="nested"),
        pytest.param(2, f"{NESTED}, sharding_strategy=ShardingStrategy.SHARD_GRAD_OP", id="grad_op"),
        pytest.param(2, "sharding_strategy=ShardingStrategy.NO_SHARD", id="no_shard"),
        pytest.param(2, f"{NESTED}, mixed_precision={HALF}", id="half"),
        pytest.param(
            4,
            "sharding_strategy=ShardingStrategy.HYBRID_SHARD, "
            "device_mesh=dist.device_mesh.init_device_mesh('cpu', (2, 2))",
            id="hybrid",
        ),
    ],
)
def test_flat_models_come_back_whole(kernel: NotebookKernel, devices: int, options: str, kept: bool) -> None:
    check(kernel, f"--devices {devices}", f"use_orig_params={kept}, {options}")


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_flat_models_come_back_whole_from_other_processes(method: str) -> None:
    with NotebookKernel({"CUDA_VISIBLE_DEVICES": ""}) as kernel:
        kernel.run("%load_ext nbdist").check()
        check(kernel, f"--devices 2 --start-method {method}", NESTED)


def check(kernel: NotebookKernel, line: str, options: str) -> None:
    kernel.run(SETUP).check()
    run = kernel.run(f"%%distributed {line}\n{CELL.format(options=options)}").check()
    assert [text for text in run.stderr.splitlines() if text.startswith("nbdist:")] == []
    kernel.run(
        f"""
        trained = [(model, optimizer, expected[0]), (new, of_new, expected[1])]
        not_told = {"exp_avg" if "use_orig_params=True" in options else ""!r}
        by_plain = torch.optim.Adam(plain.parameters(), lr=0.1)
        train(plain, by_plain)
        """
    ).check()
    # Without sharding, with use_orig_params, torch's own training adds up the gradients of all steps.
    adds = "use_orig_params=True" in options and "NO_SHARD" in options
    exact = "mixed_precision" not in options and not adds
    assert_all(kernel, *CHECKS, *([AS_IF_TRAINED_HERE] if exact else []), *AND_THEN)


# ── Together, or not at all ─────────────────────────────────────────────────────────────────────────────────

TRAINED = """
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
    wrapped = FSDP(model, device_id=device, use_orig_params=True)
    optimizer = torch.optim.Adam(wrapped.parameters(), lr=0.1)
    train(wrapped, optimizer)
    done = "here"
    """
BEFORE = "before = copy.deepcopy(model.state_dict())"
AS_BEFORE = (
    "all(torch.equal(value, before[name]) for name, value in model.state_dict().items())",
    "all(x is y for x, y in zip(model.parameters(), parameters, strict=True))",
    "all(parameter.grad is None for parameter in parameters)",
)


def test_a_model_of_which_a_part_is_lost_stays_as_it_was(kernel: NotebookKernel) -> None:
    kernel.run(SETUP).check()
    kernel.run(BEFORE).check()
    run = kernel.run(
        f"%%distributed --devices 2\n{TRAINED}\n    import os\n    torch.distributed.barrier()\n"
        "    if rank == 1:\n        os._exit(3)\n"
    )
    assert run.status == "error"
    reason = "stays behind: it is sharded over the ranks, and not all of them handed over their part"
    notes = [line for line in run.stderr.splitlines() if line.startswith("nbdist:")]
    named = ("model (its new content)", "wrapped", "optimizer")
    assert sorted(notes) == sorted(f"nbdist: {name} {reason}" for name in named)
    assert_all(kernel, *AS_BEFORE, "done == 'here'", "'wrapped' not in globals()")


def test_only_the_model_that_has_lost_a_part_stays_behind(kernel: NotebookKernel) -> None:
    kernel.run(SETUP).check()
    kernel.run(BEFORE).check()
    run = kernel.run(
        """
        %%distributed --devices 2
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
        other = FSDP(copy.deepcopy(model), device_id=device)
        its = torch.optim.Adam(other.parameters(), lr=0.1)
        train(other, its)
        wrapped = FSDP(model, device_id=device)
        optimizer = torch.optim.Adam(wrapped.parameters(), lr=0.1)
        train(wrapped, optimizer)
        if rank == 1:
            optimizer.state.clear()
        """
    ).check()
    notes = [line for line in run.stderr.splitlines() if line.startswith("nbdist:")]
    assert [line.partition(" stays behind")[0] for line in notes] == [
        "nbdist: model (its new content)",
        "nbdist: wrapped",
        "nbdist: optimizer",
    ]
    assert_all(kernel, *AS_BEFORE, "type(other) is Net and len(its.state) == 8", "train(other, its) is None")


def test_a_model_comes_back_after_a_rank_has_failed(kernel: NotebookKernel) -> None:
    kernel.run(SETUP).check()
    run = kernel.run(
        f"%%distributed --devices 2\n{TRAINED}\n    if rank == 1:\n        raise ValueError('late')"
    )
    assert run.status == "error"
    kernel.run("by_plain = torch.optim.Adam(plain.parameters(), lr=0.1)\ntrain(plain, by_plain)").check()
    assert_all(
        kernel,
        AS_IF_TRAINED_HERE,
        "all(torch.allclose(x, y, rtol=1e-3, atol=1e-5) for x, y in zip(model.parameters(), plain.parameters()))",
    )


def test_a_model_comes_back_from_the_middle_of_its_work(kernel: NotebookKernel) -> None:
    kernel.run(SETUP).check()
    run = kernel.run(
        """
        %%distributed --devices 2
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
        wrapped = FSDP(model, device_id=device)
        optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
        def fail(*_):
            raise ValueError("in the middle")
        hook = model.last.register_forward_hook(fail)
        wrapped(inputs)
        """
    )
    assert run.status == "error"
    kernel.run("hook.remove()").check()
    assert_all(
        kernel,
        "all(torch.equal(x, y) for x, y in zip(model.parameters(), plain.parameters(), strict=True))",
        "not torch.equal(model.norm.running_mean, plain.norm.running_mean)",
        "train(model, optimizer) is None",
    )


def test_an_optimizer_of_the_notebook_is_changed_in_place(kernel: NotebookKernel) -> None:
    kernel.run(SETUP).check()
    kernel.run("optimizer = torch.optim.Adam(model.parameters(), lr=0.1)\nmine = optimizer").check()
    kernel.run(
        """
        %%distributed --devices 2
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
        train(FSDP(model, device_id=device, use_orig_params=True), optimizer)
        optimizer.param_groups[0]["lr"] = 0.05
        """
    ).check()
    kernel.run("by_plain = torch.optim.Adam(plain.parameters(), lr=0.1)\ntrain(plain, by_plain)").check()
    assert_all(
        kernel,
        "optimizer is mine and optimizer.param_groups[0]['lr'] == 0.05",
        "all(x is y for x, y in zip(optimizer.param_groups[0]['params'], parameters, strict=True))",
        AS_IF_TRAINED_HERE,
        "train(model, optimizer) is None",
    )


def test_an_argument_of_a_call_comes_back_whole(kernel: NotebookKernel) -> None:
    kernel.run(SETUP).check()
    kernel.run(
        """
        import nbdist

        def work(model):
            from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
            wrapped = FSDP(model, device_id=torch.device("cpu"))
            train(wrapped, torch.optim.SGD(wrapped.parameters(), lr=0.01))

        def run():
            mine, other = copy.deepcopy(model), copy.deepcopy(model)
            nbdist.launch(work, mine, devices=2)
            train(other, torch.optim.SGD(other.parameters(), lr=0.01))
            return [torch.allclose(x, y) for x, y in zip(mine.parameters(), other.parameters(), strict=True)]
        """
    ).check()
    assert kernel.value("run()") == [True] * 8


def test_a_model_can_be_wrapped_again_by_the_next_cell(kernel: NotebookKernel) -> None:
    kernel.run(SETUP).check()
    for options in ("use_orig_params=True", "use_orig_params=False"):
        kernel.run(
            f"""
            %%distributed --devices 2
            from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
            wrapped = FSDP(model, device_id=device, {options})
            train(wrapped, torch.optim.SGD(wrapped.parameters(), lr=0.01))
            """
        ).check()
        kernel.run("train(plain, torch.optim.SGD(plain.parameters(), lr=0.01))").check()
        assert_all(
            kernel,
            "all(torch.allclose(x, y) for x, y in zip(model.parameters(), plain.parameters(), strict=True))",
        )
