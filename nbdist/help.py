"""The options in words: what ``%%distributed?`` shows, and the README's table."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping

from nbdist.options import ALL_OPTIONS

_ABOUT = """\
Run this cell on several ranks: processes that each have a device of their own and a torch.distributed
process group that is ready. When the cell ends, the notebook has what rank 0 made or changed.

    %%distributed --devices 2
    import torch, torch.distributed as dist
    x = torch.ones(1, device=device) * rank
    dist.all_reduce(x)
    x.item()

The cell finds rank, local_rank, world_size, device and all names of the notebook. Options:
"""
_MORE_EXAMPLES = """
The GPUs 0 and 2, seeded, and only these two names brought back:

    %%distributed -d 0,2 --seed 42 -o model,losses

Four ranks on the CPU, the text of rank 0 only, and each rank's loss in a list:

    %%distributed -d 4 --accelerator cpu --logs rank0 --gather loss

Ranks that stay: cells run in them within milliseconds, on all of them or on some:

    %distributed start --devices 4
    %%distributed --ranks 0,2

What is up: %distributed status
What each rank printed: %distributed logs
Where the ranks that are up stand, with their stacks: %distributed stacks
pdb where rank 1 failed, after a cell with --hold: %distributed debug 1
And the end of ranks that are kept: %distributed stop

Options for all later cells on ranks, and for %distributed start, nbdist.launch and nbdist.Session, as
far as these do not say otherwise (--no-hold undoes --hold). Alone it shows them, --reset drops them:

    %distributed defaults --devices 4 --seed 0

Every cell on the ranks that %distributed start has started, but for those that begin with %%local:

    %distributed auto on
"""


def commands_text(commands: Mapping[str, tuple[str, str]]) -> str:
    """What ``%distributed`` alone shows.

    Args:
        commands: of each its words and what it does.
    """
    usages = {f"{name} {usage}".rstrip(): what for name, (usage, what) in commands.items()}
    width = max(map(len, usages))
    lines = [f"  %distributed {usage:<{width}}  {what}" for usage, what in usages.items()]
    return "\n".join(["Commands for ranks that stay, and for runs in the background:", "", *lines, ""])


def help_text() -> str:
    """What ``%%distributed?`` shows: what it does, an example, every option, two more examples."""
    width = max(len(opt.usage) for opt in ALL_OPTIONS) + 4
    lines = []
    for opt in ALL_OPTIONS:
        usage = f"  {opt.usage if opt.short else '    ' + opt.usage:<{width}}  "
        text = f"{opt.help}; default: {opt.default_help}"
        lines += textwrap.wrap(text, 100, initial_indent=usage, subsequent_indent=" " * len(usage))
    return "\n".join([_ABOUT, *lines, _MORE_EXAMPLES])


def markdown_table() -> str:
    """The options as a markdown table of ``option``, ``meaning`` and ``default``, for the README."""
    lines = ["| option | meaning | default |", "|---|---|---|"]
    for opt in ALL_OPTIONS:
        cells = (f"`{opt.usage}`", opt.help, opt.default_help)
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(lines)
