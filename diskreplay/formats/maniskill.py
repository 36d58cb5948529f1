"""The HDF5 layout of ManiSkill: a group for each trajectory ``k``.

``RecordEpisode`` of ManiSkill 3 (github.com/haosulab/ManiSkill, ``utils/wrappers/record.py``) writes it:

===================================  ===============================================================================
key                                  becomes
===================================  ===============================================================================
``traj_<k>/obs``                     ``obs``, one array or groups of them, with one entry more than there are steps
``traj_<k>/actions``                 ``action``
``traj_<k>/rewards``                 ``reward``; 0 where they were not recorded
``terminated``, ``truncated``        the same; one that is set before the last step ends an episode there
others with an entry a step          columns, such as ``success``
===================================  ===============================================================================

``env_states``, which have an entry more, and the JSON file beside it are not read. Demonstrations are published without
observations: ManiSkill makes them by replaying.
"""

from __future__ import annotations

from diskreplay.formats.core.array_reader import array_format
from diskreplay.formats.core.convention import Convention
from diskreplay.formats.files import hdf5
from diskreplay.schema.columns import ACTION, OBS, REWARD, TERMINATED, TRUNCATED

TABLE = Convention(
    {"obs": OBS, "actions": ACTION, "rewards": REWARD, "terminated": TERMINATED, "truncated": TRUNCATED},
    episode=r"traj_(?P<episode>\d+)(?P<name>/.+|\.attrs/.+)", label="traj_{}", columns=True, closed=True,
    missing="has no observations; ManiSkill makes them: python -m mani_skill.trajectory.replay_trajectory -o state "
    "--save-traj --traj-path FILE",
)  # fmt: skip
FORMATS = (
    array_format("maniskill", "ManiSkill: one HDF5 file with a group for each trajectory", "file", hdf5.KIND, (TABLE,)),
)
