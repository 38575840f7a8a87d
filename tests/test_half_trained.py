"""Training that is stopped at any moment: what comes back belongs together."""

from __future__ import annotations

import random
import time

import pytest
from notebook_kernel import NotebookKernel

SETUP = """
import hashlib, torch, nbdist

def digest(model, optimizer):
    \"\"\"Tells any two states of the two apart, and whether the one still refers to the other.\"\"\"
    parts = [model.training, [p is q for p, q in zip(model.parameters(), optimizer.param_groups[0]["params"])]]
    parts += [tensor.tolist() for tensor in model.state_dict().values()]
    for param in model.parameters():
        parts.append([value.tolist() for _, value in sorted(optimizer.state.get(param, {}).items())])
    return hashlib.sha256(repr(parts).encode()).hexdigest()

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.BatchNorm1d(32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
data, target = torch.randn(64, 8), torch.randn(64, 1)
"""

TRAINING = """
%%distributed --devices 2 --start-method {method}
ddp, ddp_optimizer = nbdist.setup(model, optimizer)
try:
    while True:
        loss = torch.nn.functional.mse_loss(ddp(data), target)
        ddp_optimizer.zero_grad()
        loss.backward()
        ddp_optimizer.step()
        print("training", flush=True)
finally:
    seen = digest(model, optimizer)
"""


@pytest.mark.parametrize(("method", "times"), [("fork", 50), ("forkserver", 10)])
def test_model_and_optimizer_belong_together_whenever_a_cell_is_stopped(method: str, times: int) -> None:
    """`seen` is what rank 0 had at its end: the notebook has just that, or what it had before the cell."""
    moments = random.Random(0)
    changed = 0
    with NotebookKernel({"CUDA_VISIBLE_DEVICES": ""}) as kernel:
        kernel.run("%load_ext nbdist").check()
        kernel.run(SETUP).check()
        for number in range(times):
            kernel.run("before = seen = digest(model, optimizer)").check()
            run = kernel.start_run(TRAINING.format(method=method))
            run.wait_for_text("training")
            time.sleep(moments.uniform(0.0, 0.3))  # any moment will do
            kernel.interrupt()
            run.finish()
            told = f"round {number}: {run.error}"
            assert run.error is not None, told
            assert run.error.ename == "KeyboardInterrupt", run.error.evalue
            assert kernel.value("digest(model, optimizer) == seen"), told
            changed += kernel.value("seen != before")
    assert changed > 0
