"""A pytest plugin: the buffers of Pearl (LondonNode's ``pearll``) are ours."""

from __future__ import annotations

import pearll.buffers
import pearll.buffers.rollout_buffer

from diskreplay.compat import pearl as ours

for name in ("HERBuffer", "ReplayBuffer", "RolloutBuffer"):
    setattr(pearll.buffers, name, getattr(ours, name))
pearll.buffers.rollout_buffer.RolloutBuffer = ours.RolloutBuffer
