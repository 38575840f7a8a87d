"""``nbdist demo``: train on real data on two CPU ranks, from the terminal."""

from __future__ import annotations

import time
from typing import Any

from nbdist.digits import digits_net, load_digits
from nbdist.session import launch
from nbdist.training import setup, setup_loader

_RANKS = 2
_EPOCHS = 12
_BATCH = 32
_BAR_CELLS = 30

_NEXT = """
What to do next, in a notebook:

    %load_ext nbdist

    %%distributed --devices 2
    import torch, torch.distributed as dist
    x = torch.ones(1, device=device) * rank
    dist.all_reduce(x)
    x.item()

notebooks/01_first_ranks.ipynb explains it, notebooks/02_train_ddp.ipynb is this training in a notebook.
"""


def train() -> tuple[Any, float]:
    """Train the digits' network on the ranks that call this.

    Returns:
        The trained model and its accuracy on the test set, from 0 to 1.
    """
    import torch
    from torch.utils.data import DataLoader

    torch.manual_seed(0)
    train_set, test_set = load_digits()
    model = digits_net()
    wrapped, optimizer = setup(model, torch.optim.Adam(model.parameters(), lr=2e-3))
    loader = setup_loader(DataLoader(train_set, batch_size=_BATCH, shuffle=True))
    steps = _EPOCHS * len(loader)
    for epoch in range(_EPOCHS):
        for step, (images, labels) in enumerate(loader):
            loss = torch.nn.functional.cross_entropy(wrapped(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            _show(epoch, epoch * len(loader) + step + 1, steps, loss.item())
    print()
    images, labels = test_set.tensors
    with torch.no_grad():
        accuracy = (model(images).argmax(1) == labels).float().mean().item()
    return model, accuracy


def _show(epoch: int, done: int, steps: int, loss: float) -> None:
    filled = _BAR_CELLS * done // steps
    bar = "█" * filled + "·" * (_BAR_CELLS - filled)
    # Bars of all ranks become one.
    print(f"\repoch {epoch + 1:2}/{_EPOCHS} {bar} {done:3}/{steps} steps  loss {loss:.3f}", end="")


def main() -> None:
    """Run the demo and say what to do next.

    Example:
        $ nbdist demo
    """
    print(f"Training a small convolutional net on 1,347 handwritten digits with DDP, on {_RANKS} CPU ranks.")
    begin_s = time.monotonic()
    model, accuracy = launch(train, devices=_RANKS, accelerator="cpu")
    weights = sum(parameter.numel() for parameter in model.parameters())
    print(
        f"Trained in {time.monotonic() - begin_s:.1f} s; "
        f"the model ({weights:,} weights) is back in this process."
    )
    print(f"Accuracy on 450 digits it has never seen: {accuracy:.1%}")
    print(_NEXT, end="")
