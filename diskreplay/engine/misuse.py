"""Signs that a program adds rows which it does not mean; a warning tells each once, with the line to write instead.

1. Many rows do not continue the row before, because the observations differ, though no flag ended the episode.
2. After each end of an episode, the next row begins with the ``next_obs`` of that end. So a vector environment resets
   by itself, and its final observations, or its reset steps, are added as something else.

The counts are of this process alone. They only guess what the program means: what is stored does not depend on them.
"""

from __future__ import annotations

from diskreplay.errors import MisuseWarning, warn_outside

WATCHED_STEPS = 100
"""The least number of steps, of all environments, before a warning about cuts."""
MOST_CUTS = 0.05
"""The largest share of steps with a cut that gets no warning."""
WATCHED_ENDS = 3
"""The least number of ends of episodes, all of them alike, before a warning about ends."""

CUTS = (
    "{cuts} of {steps} steps do not continue the one before them: their obs is not its next_obs, bit for bit, and no "
    "flag said that its episode had ended. n-step returns and sequences end there, and both observations are stored. "
    "If the episodes went on (observations are normalised or encoded anew), create the store with continuity='flags'; "
    "if they were left, set truncated, or call cut() before the next add"
)
NEXT_STEP_LINE = "add(..., valid=~previous_done), where previous_done is terminated | truncated of the step before"
SAME_STEP_LINE = "add(obs, action, reward, diskreplay.final_observations(next_obs, info, terminated | truncated), ...)"
ONE_LINE = "With an environment that you reset yourself, write obs, info = env.reset() after each end"
NEXT_STEP = (
    "after each of the last {ends} ends of an episode came a step without reward that began with the final "
    "observation: the resets of a vector environment with next-step autoreset. They are no transitions, and are "
    f"sampled like ones. Write {NEXT_STEP_LINE}"
)
SAME_STEP = (
    "after each of the last {ends} ends of an episode the next step began with the end's own next_obs: a vector "
    "environment with same-step autoreset, whose next_obs is that of the new episode already. Write "
    f"{SAME_STEP_LINE}. {ONE_LINE}"
)
EITHER = (
    "after each of the last {ends} ends of an episode the next step began with the end's own next_obs: a vector "
    "environment that resets by itself, and what it does then is taken for transitions. With next-step autoreset, "
    f"Gymnasium's default, write {NEXT_STEP_LINE}; with same-step autoreset, whose next_obs is that of the new episode "
    f"already, write {SAME_STEP_LINE}. {ONE_LINE}"
)


class Watch:
    """The counts of one buffer's rows so far, from which warnings follow."""

    def __init__(self) -> None:
        self.steps = 0
        self.cuts = 0
        self.ends = 0
        self.unmoved_ends = 0
        self.empty_ends = 0
        self.earning_ends = 0
        self.to_say: str | None = None
        """The text of a warning that is due."""
        self._said: set[str] = set()

    def ignore_resets(self) -> None:
        """Give no warning about steps that begin with the ``next_obs`` of an end: this learner never uses those."""
        self._said.add("resets")

    def count_row(self, steps: int, cuts: int, ends: int, unmoved: int, empty: int, earning: int) -> None:
        """Count a row in which some environment does not go on.

        Args:
            steps: the steps of all environments so far.
            cuts: the environments that begin an episode though nothing ended the one before.
            ends: the environments whose step is the first after an end with a flag; without those that do not move.
            unmoved: of ``ends``, those whose step begins with the ``next_obs`` of the end.
            empty: of ``unmoved``, those whose step has no reward.
            earning: of ``unmoved``, those where the step before the end had a reward.
        """
        self.steps = steps
        self.cuts += cuts
        self.ends += ends
        self.unmoved_ends += unmoved
        self.empty_ends += empty
        self.earning_ends += earning
        if self.cuts > MOST_CUTS * self.steps and self.steps >= WATCHED_STEPS:
            self._due("cuts", CUTS)
        elif WATCHED_ENDS <= self.ends == self.unmoved_ends:
            if self.empty_ends < self.ends:
                self._due("resets", SAME_STEP)
            else:  # resets have no reward, which tells something only if other steps have one
                self._due("resets", NEXT_STEP if self.earning_ends == self.ends else EITHER)

    def _due(self, sign: str, text: str) -> None:
        if sign not in self._said:
            self._said.add(sign)
            self.to_say = text.format(cuts=self.cuts, steps=self.steps, ends=self.ends)

    def say(self) -> None:
        """Give the warning that is due, for the line outside of this package that led here."""
        text, self.to_say = self.to_say, None
        if text is not None:
            warn_outside(text, MisuseWarning)
