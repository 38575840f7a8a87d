"""Real data for examples: 1,797 handwritten digits, and a small network that reads them.

The images are the Optical Recognition of Handwritten Digits data (E. Alpaydin and C. Kaynak, UCI Machine
Learning Repository, 1998, https://doi.org/10.24432/C50P49), licensed CC BY 4.0
(https://creativecommons.org/licenses/by/4.0/), in the part that scikit-learn distributes as
``sklearn.datasets.load_digits``. Changed here only in form: stored as 8-bit numbers.
"""

from __future__ import annotations

import math
from importlib import resources
from typing import TYPE_CHECKING

from nbdist.errors import OptionError

if TYPE_CHECKING:
    from torch import nn
    from torch.utils.data import TensorDataset

_BRIGHTEST = 16


def load_digits(test_fraction: float = 0.25) -> tuple[TensorDataset, TensorDataset]:
    """The digits, as a training and a test set.

    The split is always the same: the images are permuted by ``numpy.random.RandomState(0)``, and the
    last ``test_fraction`` of them, rounded up, are the test set (1,347 and 450 images by default).

    Args:
        test_fraction: more than 0 and less than 1.

    Returns:
        Two `TensorDataset`s of pairs: the image, float32 of shape (1, 8, 8) from 0 (paper) to 1 (ink),
        and its label, int64 from 0 to 9.

    Raises:
        OptionError: ``test_fraction`` is out of range.

    Example:
        >>> train_set, test_set = load_digits()
        >>> image, label = train_set[0]
    """
    if not 0 < test_fraction < 1:
        raise OptionError(
            f"test_fraction={test_fraction!r} leaves no training or no test set; allowed is more than 0 and "
            "less than 1. Pass 0.25 for a quarter."
        )
    import numpy
    import torch
    from torch.utils.data import TensorDataset

    with (resources.files("nbdist") / "data" / "digits.npz").open("rb") as file:
        stored = numpy.load(file)
        images = torch.from_numpy(stored["images"]).float().unsqueeze(1) / _BRIGHTEST
        labels = torch.from_numpy(stored["labels"]).long()
    # RandomState, because its stream is promised never to change.
    order = torch.from_numpy(numpy.random.RandomState(0).permutation(len(labels)))
    train, test = order.tensor_split([len(order) - math.ceil(test_fraction * len(order))])
    return TensorDataset(images[train], labels[train]), TensorDataset(images[test], labels[test])


def digits_net() -> nn.Sequential:
    """A small convolutional network for the digits (38,282 parameters).

    It takes images, float32 of shape (N, 1, 8, 8), and gives scores of shape (N, 10).

    Example:
        >>> model = digits_net()
        >>> model(torch.zeros(5, 1, 8, 8)).shape
        torch.Size([5, 10])
    """
    from torch import nn

    return nn.Sequential(
        nn.Conv2d(1, 16, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )
