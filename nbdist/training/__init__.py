"""What a training loop calls inside a rank: model, data, seeds, metrics.

Everything here asks torch.distributed and the environment which rank it is in, and nothing else of nbdist
than `nbdist.audience` (who hears what is logged), so the same loop runs in a cell's ranks, under plain
torchrun and, with one rank, in a plain process.

    ranks      which rank this is, its device, the process group
    modules    `setup`: a model and its optimizers, made ready for this rank
    loaders    `setup_loader`: this rank's share of the data, on its device
    samplers   how a loader's order is shared out over ranks
    transfer   a batch, whatever it is made of, to a device
    metrics    numbers over all ranks
    logging    `log`: numbers for the dashboard
    tracking   `track`: a progress bar for all ranks
    seeds      reproducible randomness
"""

from nbdist.training.loaders import RankLoader, setup_loader
from nbdist.training.logging import log
from nbdist.training.metrics import mean
from nbdist.training.modules import setup
from nbdist.training.ranks import is_rank_zero, print_rank_zero
from nbdist.training.seeds import seed_everything
from nbdist.training.tracking import track

__all__ = [
    "RankLoader",
    "is_rank_zero",
    "log",
    "mean",
    "print_rank_zero",
    "seed_everything",
    "setup",
    "setup_loader",
    "track",
]
