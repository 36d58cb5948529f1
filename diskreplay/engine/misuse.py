"""Signs that a program adds rows which it does not mean; a warning tells each once, with the line to write instead.

1. Many rows do not continue the row before, because the observations differ, though no flag ended the episode.
2. After each end of an episode, the next row begins with the ``next_obs`` of that end. So a vector environment resets
   by itself, and its final observations, or its reset steps, are added as something else.

The counts are of this process alone. They only guess what the program means: what is stored does not depend on them.
"""

from __future__ import annotations

from diskreplay.errors import MisuseWarning, warn_outside
from diskreplay.native import core

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
    """The warnings that follow from one buffer's rows so far.

    Attributes:
        signs: the counts of the rows that begin episodes; the core counts, too.
        to_say: the text of a warning that is due.
    """

    def __init__(self) -> None:
        self.signs = core.Signs()
        self.signs.most_cuts, self.signs.watched_steps, self.signs.watched_ends = MOST_CUTS, WATCHED_STEPS, WATCHED_ENDS
        self.to_say: str | None = None

    def ignore_resets(self) -> None:
        """Give no warning about steps that begin with the ``next_obs`` of an end: this learner never uses those."""
        self.signs.resets_said = True

    def look(self, steps: int) -> None:
        """Look whether a warning is due, after ``steps`` of all environments."""
        signs = self.signs
        if signs.cuts > signs.most_cuts * steps and steps >= signs.watched_steps:
            if not signs.cuts_said:
                signs.cuts_said = True
                self.to_say = CUTS.format(cuts=signs.cuts, steps=steps)
        elif signs.watched_ends <= signs.ends == signs.unmoved and not signs.resets_said:
            signs.resets_said = True
            resets = NEXT_STEP if signs.earning == signs.ends else EITHER  # they have no reward, unlike other steps
            self.to_say = (SAME_STEP if signs.empty < signs.ends else resets).format(ends=signs.ends)

    def say(self) -> None:
        """Give the warning that is due, for the line outside of this package that led here."""
        text, self.to_say = self.to_say, None
        if text is not None:
            warn_outside(text, MisuseWarning)
