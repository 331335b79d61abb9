"""State that the worker's threads share: the one that reads requests, the one that runs trials, the heartbeat."""

import threading
import time

from . import protocol


class Control:
    """Requests of the tuner, as the thread that runs trials sees them."""

    def __init__(self, outbox):
        self._outbox = outbox
        self._changed = threading.Condition()
        self._cancelled = set()
        self._gone = False
        #: Turn of a hold that was not taken back.
        self._held = None
        self._takes_turns = False
        #: Trial whose profile phase may begin.
        self._granted = None
        self._under_way = None
        #: Passes requests about the trial under way on to where it runs.
        self._say_on = None

    def take_turns(self, takes_turns):
        """Says whether profile phases wait for their turn."""
        with self._changed:
            self._takes_turns = takes_turns
            self._changed.notify_all()

    def takes_turns(self):
        """Whether profile phases wait for their turn."""
        with self._changed:
            return self._takes_turns

    def relay_to(self, number, say):
        """Has requests about a trial passed on to `say`, those first that have come already; `None` ends that."""
        with self._changed:
            self._say_on = say
            if self._stops(number):
                self._pass_on("cancel", number=number)
            if self._granted == number:
                self._pass_on("measure", number=number)
            if self._held is not None:
                self._pass_on("hold", turn=self._held)

    def begin(self, number):
        """Forgets requests that were meant for others: a trial that was cancelled may run again under its number."""
        with self._changed:
            self._cancelled.discard(number)
            self._held = self._granted = None
            self._changed.notify_all()

    def cancel(self, number):
        """Asks a trial to stop after the step it is in."""
        with self._changed:
            self._cancelled.add(number)
            self._pass_on("cancel", number=number)
            self._changed.notify_all()

    def hold(self, turn):
        """Asks for a wait before the next step."""
        with self._changed:
            self._held = turn
            self._pass_on("hold", turn=turn)
            self._changed.notify_all()

    def resume(self):
        """Takes a hold back."""
        with self._changed:
            self._held = None
            self._pass_on("resume")
            self._changed.notify_all()

    def grant(self, number):
        """Lets the profile phase of a trial begin. It is no time to be held."""
        with self._changed:
            self._granted = number
            self._held = None
            self._pass_on("measure", number=number)
            self._changed.notify_all()

    def coordinator_gone(self):
        """Notes that nothing is left to report to."""
        with self._changed:
            self._gone = True
            if self._under_way is not None:
                self._pass_on("cancel", number=self._under_way)
            self._changed.notify_all()

    def is_alone(self):
        """Whether nothing is left to report to."""
        with self._changed:
            return self._gone

    def set_under_way(self, number):
        """Notes which trial is under way; `None` for none."""
        with self._changed:
            self._under_way = number

    def under_way(self):
        """The trial under way."""
        with self._changed:
            return self._under_way

    def is_stopped(self, number):
        """Whether a trial should end after the step it is in."""
        with self._changed:
            return self._stops(number)

    def wait_while_held(self, number):
        """Waits while the tuner holds this worker; returns the seconds of that.

        Each hold is answered: the next may come before this thread woke from the last, and the tuner waits for that.
        """
        waited, answered = 0.0, None
        while (turn := self._hold_in_force()) is not None and turn != answered:
            answered = turn
            waited += self._wait(number, protocol.held(turn), lambda turn=turn: self._held != turn)
        return waited

    def wait_for_turn(self, number):
        """Waits until the profile phase of a trial may begin; returns the seconds of that."""
        if not self.takes_turns():
            return 0.0
        return self._wait(number, protocol.ready_to_measure(number), lambda: self._take_grant(number))

    def _hold_in_force(self):
        with self._changed:
            return self._held

    def _pass_on(self, request, **about):
        if self._say_on is not None:
            self._say_on({"request": request, **about})

    def _take_grant(self, number):
        if self._granted != number:
            return False
        self._granted = None
        return True

    def _stops(self, number):
        return self._gone or number in self._cancelled

    def _wait(self, number, message, is_over):
        began = time.monotonic()
        try:
            self._outbox.say(message)
        except OSError:
            self.coordinator_gone()
        with self._changed:
            self._changed.wait_for(lambda: is_over() or self._stops(number))
        return time.monotonic() - began
