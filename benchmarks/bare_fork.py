"""The least that it takes: fork ranks, make a gloo group, all_reduce. One launch per line on stdin.

Prints for each launch the seconds to the first all_reduce done on all ranks, and to the end of all.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
import time

import torch
import torch.distributed as dist

_MOMENT = struct.Struct("d")
_HOST = "127.0.0.1"


def launch(world_size: int) -> tuple[float, float]:
    """Fork the ranks and wait for them."""
    start_s = time.monotonic()
    listener = socket.create_server((_HOST, 0), backlog=4 * world_size)
    port = listener.getsockname()[1]
    done_read, done_write = os.pipe()
    hold_read, hold_write = os.pipe()
    pids = []
    for rank in range(world_size):
        pid = os.fork()
        if pid == 0:
            os.close(hold_write)
            _be_rank(rank, world_size, port, done_write, hold_read)
        pids.append(pid)
    # After the forks: a child forked beside the store's running thread hangs now and then.
    store = dist.TCPStore(
        _HOST, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
    )
    last_s = max(_MOMENT.unpack(os.read(done_read, _MOMENT.size))[0] for _ in pids)
    os.close(hold_write)
    for pid in pids:
        os.waitpid(pid, 0)
    for fd in (done_read, done_write, hold_read):
        os.close(fd)
    del store
    return last_s - start_s, time.monotonic() - start_s


def _be_rank(rank: int, world_size: int, port: int, done_write: int, hold_read: int) -> None:
    torch.set_num_threads(1)
    store = dist.TCPStore(_HOST, port, is_master=False, wait_for_workers=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
    dist.all_reduce(torch.ones(1))
    os.write(done_write, _MOMENT.pack(time.monotonic()))
    os.read(hold_read, 1)  # nobody leaves while another is still in the all_reduce
    os._exit(0)


if __name__ == "__main__":
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    for _ in sys.stdin:
        print(*launch(int(sys.argv[1])), flush=True)
