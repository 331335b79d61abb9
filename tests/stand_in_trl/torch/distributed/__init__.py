"""Ranks that are linked by sockets: the first of them gathers what all have, and hands it to each."""

import os
import time
from multiprocessing.connection import Client, Listener

#: Links of the first rank to the others in their order, and those of another one to the first.
_links = []
#: Seconds that a rank waits for the first one.
PATIENCE_S = 20.0


def is_initialized():
    return "RANK" in os.environ


def get_rank():
    return int(os.environ["RANK"])


def get_world_size():
    return int(os.environ["WORLD_SIZE"])


def init_process_group(backend):
    assert backend == "gloo" and not _links
    address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    if get_rank() == 0:
        others = {}
        with Listener(address, backlog=get_world_size()) as listener:
            while len(others) < get_world_size() - 1:
                link = listener.accept()
                others[link.recv()] = link
        _links.extend(others[rank] for rank in sorted(others))
        return
    began = time.monotonic()
    while not _links:
        try:
            _links.append(Client(address))
        except OSError:
            if time.monotonic() - began > PATIENCE_S:
                raise
            time.sleep(0.02)
    _links[0].send(get_rank())


def new_group(backend, timeout):
    assert backend == "gloo" and timeout.days > 1


def all_gather_object(found, value, group=None):
    if get_rank() == 0:
        found[:] = [value, *(link.recv() for link in _links)]
        for link in _links:
            link.send(found)
        return
    _links[0].send(value)
    found[:] = _links[0].recv()
