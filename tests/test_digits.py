"""The digits: the data are the real ones, the split is what its text says, the network fits both."""

from __future__ import annotations

import pytest
import torch
from sklearn import datasets
from torch.utils.data import TensorDataset

from nbdist.digits import digits_net, load_digits
from nbdist.errors import OptionError


def rows(*parts: TensorDataset) -> list[tuple[int, ...]]:
    """Each example as its label and its 64 pixels of 0 to 16, in an order of their own."""
    return sorted(
        (int(label), *(image * 16).flatten().int().tolist())
        for part in parts
        for image, label in zip(*part.tensors, strict=True)
    )


def test_train_and_test_are_the_published_digits_each_once() -> None:
    published = datasets.load_digits()
    expected = sorted(
        (int(label), *map(int, pixels))
        for label, pixels in zip(published.target, published.data, strict=True)
    )
    assert rows(*load_digits()) == expected


def test_the_split_is_a_quarter_and_always_the_same() -> None:
    train, test = load_digits()
    assert (len(train), len(test)) == (1347, 450)
    for first, second in zip(load_digits(), (train, test), strict=True):
        assert all(map(torch.equal, first.tensors, second.tensors))


def test_the_split_mixes_the_digits() -> None:
    _, test = load_digits()
    per_digit = torch.bincount(test.tensors[1], minlength=10)
    # 45 of each are expected; unmixed, one of them would be missing or there with all of its 180.
    assert per_digit.min() >= 30
    assert per_digit.max() <= 60


def test_images_and_labels_have_the_form_that_torch_takes() -> None:
    for part in load_digits(test_fraction=0.5):
        images, labels = part.tensors
        assert images.dtype == torch.float32
        assert images.shape == (len(part), 1, 8, 8)
        assert (images.min(), images.max()) == (0, 1)
        assert labels.dtype == torch.int64
        assert set(labels.tolist()) == set(range(10))


def test_the_test_fraction_is_rounded_up() -> None:
    assert len(load_digits(test_fraction=0.001)[1]) == 2  # of 1,797


@pytest.mark.parametrize("fraction", [0, 1, -0.5, 1.5, float("nan")])
def test_a_fraction_that_leaves_one_set_empty_is_refused(fraction: float) -> None:
    with pytest.raises(OptionError, match=rf"test_fraction={fraction}.*more than 0 and less than 1"):
        load_digits(test_fraction=fraction)


def test_the_network_scores_ten_digits_for_each_image() -> None:
    train, _ = load_digits()
    assert digits_net()(train.tensors[0][:5]).shape == (5, 10)
