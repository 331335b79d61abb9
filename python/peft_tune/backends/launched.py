"""Trials that a launcher starts: those on several devices, and those whose updates DeepSpeed has on the host.

The worker keeps its own process for all others, and the ranks from one trial on as many devices to the next.
"""

import json
import time

from . import protocol
from .rank_group import RankGroup, places_of
from .trial_files import Invalid

#: Messages of the first rank that are no others' business.
OF_RANKS = ("hello", "heartbeat", "bye")
#: Seconds in which a launcher ends where a rank was lost. The first one may have told that the others do not answer.
LOST_S = 3.0


class RanksLost(Exception):
    """Ranks that ended in the middle of a trial without a reason of its own."""


class Trials:
    """The trials of a worker: in its own process, or on ranks."""

    def __init__(self, runner, control, outbox, threads):
        self.runner = runner
        self.control = control
        self.outbox = outbox
        self.threads = threads
        self._group = None

    def run(self, request):
        """Runs a trial and tells how it ended. Raises `RanksLost`, and what `Runner.run` does."""
        recipe = (request["task"].get("recipe") or {}).get("recipe", {})
        if is_launched(recipe):
            LaunchedTrial(request, recipe, self).run()
        else:
            self.end()
            self.runner.run(request)

    def end(self):
        """Ends the ranks, where there are any."""
        group, self._group = self._group, None
        return None if group is None else group.end()

    def group_at(self, places):
        """The ranks at these places."""
        group = self._group
        if group is None or group.places != places or not group.is_whole():
            self.end()
            # Their devices are theirs alone.
            self.runner.bases.forget()
            self._group = RankGroup(places, self.control.takes_turns())
        return self._group


def is_launched(recipe):
    """Whether a recipe is trained by processes that a launcher starts."""
    return devices_of(recipe) > 1 or recipe.get("optimizer", {}).get("offload", "none") != "none"


def devices_of(recipe):
    """The number of devices that a recipe is trained on."""
    return recipe.get("batch", {}).get("devices", 1)


class LaunchedTrial:
    """A trial under way on ranks: what the first one tells is passed on."""

    def __init__(self, request, recipe, trials):
        self._request = request
        self._recipe = recipe
        self._trials = trials
        self._runner, self._control = trials.runner, trials.control
        self._started = time.monotonic()
        self._phase = "load"
        self._metrics = {}
        self._out_of_memory = None

    def run(self):
        """Runs it to its end. Raises `RanksLost`."""
        number = self._request["number"]
        self._runner.emit(protocol.phase(number, "load"))
        try:
            group = self._begun()
        except Invalid as error:
            self._fail(protocol.invalid(error))
            return
        self._control.relay_to(number, group.say)
        try:
            ended = self._passed_on(group)
        finally:
            self._control.relay_to(number, None)
        if ended is None:
            self._fail(self._reason_of(group))
            return
        if ended["state"]["state"] == "failed":
            # The others may be anywhere, and hold what they have.
            self._trials.end()
        self._runner.emit(ended)

    def _begun(self):
        """The group, once the trial was handed to it."""
        request, device = self._request, self._runner.device
        files = self._runner.program.ask(self._recipe, request["task"]["recipe"]["plan"])
        count = devices_of(self._recipe)
        places = places_of(request.get("assignments"), count, device.name, self._trials.threads)
        group = self._trials.group_at(places)
        group.put_beside(files.beside)
        # Processes of a machine have one clock.
        group.say({**request, "assignments": [], "files": files._asdict(), "began": self._started})
        return group

    def _passed_on(self, group):
        """Passes on what the first rank tells, and returns its last message; `None` where the ranks ended before it."""
        for line in group.lines():
            message = message_in(line)
            event = message.get("event")
            if event == "ended":
                is_crash = message["state"].get("reason", {}).get("kind") == "crashed"
                return None if is_crash and group.ends_within(LOST_S) else message
            if event == "out_of_memory":
                self._out_of_memory = message
            elif event not in OF_RANKS and not self._is_known(message):
                self._pass_on(line)
        return None

    def _is_known(self, message):
        """Takes a message in, and says whether the tuner has it already."""
        is_phase = message.get("event") == "phase"
        if is_phase:
            self._phase = message["phase"]
        elif message.get("event") == "measured":
            self._metrics = message["metrics"]
        return is_phase and self._phase == "load"

    def _pass_on(self, line):
        try:
            self._trials.outbox.write(line)
        except OSError:
            self._control.coordinator_gone()

    def _reason_of(self, group):
        """The reason that the end of the ranks means. Raises `RanksLost` where it is none of the trial's."""
        failure = group.failure()
        code = self._trials.end()
        if self._out_of_memory is not None:
            in_use, limit = (self._out_of_memory[name] for name in ("in_use_bytes", "limit_bytes"))
            return protocol.out_of_memory(self._phase, in_use, limit)
        if failure is None:
            count = len(group.places)
            raise RanksLost(f"one of the {count} processes of a trial was lost: their launcher ended with {code}")
        rank, reason = failure
        if "message" in reason:
            reason["message"] = f"rank {rank} of {len(group.places)}: {reason['message']}"
        return reason

    def _fail(self, reason):
        wall_s = time.monotonic() - self._started
        self._runner.emit(protocol.ended(self._request["number"], protocol.failed(reason, self._metrics), wall_s))


def message_in(line):
    """The message of a line; an empty one where it is none, which is passed on for the tuner to say so."""
    try:
        found = json.loads(line)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
