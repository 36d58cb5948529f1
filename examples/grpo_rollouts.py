"""GRPO (Shao et al. 2024) with rollouts of several actors in one store, which may be killed at any moment.

The same command begins and goes on:

    python examples/grpo_rollouts.py --path runs/grpo

What it shows: actors whose streams say by their ends which rollout comes next; draws of whole groups of answers, of
bounded age and number of uses. With `--actors 1 --within 0` a run that was killed ends with the very weights of one
that never was. `docs/rollouts.md` has more.
"""

import argparse
import multiprocessing
import pathlib
import sys
import time

import numpy as np
import torch
from gymnasium import spaces

import diskreplay as dr

parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
parser.add_argument("--path", type=pathlib.Path, required=True, help="folder of the run")
parser.add_argument("--steps", type=int, default=200, help="of the trainer; each makes a version of the policy")
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--actors", type=int, default=2, help="as many in each start of a run")
parser.add_argument("--within", type=int, default=1, help="versions that a rollout may be older than the policy")
parser.add_argument("--uses", type=int, default=1, help="steps that may use a rollout")
args = parser.parse_args()

PROMPTS, GROUP, GROUPS, LONGEST, CLIP = 8, 8, 8, 12, 0.2
END, VOCABULARY = 0, PROMPTS + 1  # the token p + 1 is prompt p, and the best answer repeats it to the end
STORE, PUBLISHED = args.path / "replay", args.path / "policy.pt"
WANTED = int(np.ceil(GROUPS * (1 + args.within / args.uses) / args.actors))  # new enough groups of an actor
COLUMNS = {"tokens": ((None,), np.int32), "log_prob": ((None,), np.float32), "loss_mask": ((None,), np.bool_)}
sys.stdout.reconfigure(line_buffering=True, write_through=False)  # the lines of several processes do not mix
torch.set_num_threads(1), torch.manual_seed(args.seed)  # one thread: sums are in the same order in each run


class Policy(torch.nn.GRU):
    def __init__(self):
        super().__init__(32, 64, batch_first=True)
        self.embedding, self.head = torch.nn.Embedding(VOCABULARY, 32), torch.nn.Linear(64, VOCABULARY)

    def forward(self, tokens, state=None):
        hidden, state = super().forward(self.embedding(tokens), state)
        return self.head(hidden).log_softmax(-1), state  # log-probabilities of what follows each token


@torch.no_grad()
def answers(policy, prompt, seed):
    """Yields a group of rollouts: tokens, their log-probabilities, which ones the policy chose, and the reward."""
    random, state, alive = torch.Generator().manual_seed(seed), None, torch.ones(GROUP, 1, dtype=torch.bool)
    tokens, log_prob, mask = torch.full((GROUP, 1), prompt + 1), torch.zeros(GROUP, 1), ~alive
    while tokens.shape[1] <= LONGEST and alive.any():
        scores, state = policy(tokens[:, -1:], state)
        chosen = torch.multinomial(scores[:, 0].exp(), 1, generator=random)
        tokens, mask = torch.cat([tokens, chosen], 1), torch.cat([mask, alive], 1)
        log_prob = torch.cat([log_prob, scores[:, 0].gather(1, chosen)], 1)
        alive = alive & (chosen != END)
    for row, of_row, acted in zip(tokens.numpy(), log_prob.numpy(), mask.numpy(), strict=True):
        length = 1 + acted.sum()
        yield row[:length], of_row[:length], acted[:length], (row[acted] == prompt + 1).sum() / LONGEST


def act(number):
    """An actor: makes the next groups of its stream, as long as the newest policy needs some."""
    name, policy, trainer = f"actor-{number}", Policy(), multiprocessing.parent_process()
    try:
        rb = dr.ReplayBuffer.open(STORE, stream=name, mode="a")
    except dr.errors.LockedError:
        return  # that of the run before has yet to see that its trainer is gone; the trainer starts this one again
    while trainer.is_alive() and (published := torch.load(PUBLISHED))["version"] < args.steps:
        version, made = published["version"], rb.stats()["streams"][name]["end"]
        if len(rb.select(f"version >= {version - args.within}")) >= WANTED * GROUP:
            time.sleep(0.01)
            continue
        policy.load_state_dict(published["policy"])
        group, there = number + args.actors * (made // GROUP), made % GROUP  # a commit may have cut the last group
        turn, prompt = divmod(group, PROMPTS)
        for tokens, log_prob, mask, reward in list(answers(policy, prompt, args.seed + group))[there:]:
            rb.begin_episode(prompt=f"{turn}:{prompt}", version=version)  # the name of a group does not come again
            rb.add(prompt, 0, reward, prompt, True, False, tokens=tokens, log_prob=log_prob, loss_mask=mask)
        rb.commit()
        print(f"actor {number}: {made // GROUP + 1} groups are finished")


def draw(rb, actors):
    """Waits until enough groups can be drawn, and starts actors that are not alive."""
    while True:
        for number, actor in enumerate(actors):
            if actor is None or not actor.is_alive():
                actors[number] = multiprocessing.get_context("spawn").Process(target=act, args=(number,), daemon=True)
                actors[number].start()
                print(f"actor {number} is process {actors[number].pid}")
        rb.refresh()
        try:
            return rb.sample(GROUPS)
        except dr.errors.NotEnoughDataError:
            time.sleep(0.01)


def learn(policy, optimizer, batch):
    """A step of GRPO, without its penalty for the distance from a reference policy."""
    reward = batch.reward.view(-1, GROUP)
    advantage = ((reward - reward.mean(1, keepdim=True)) / (reward.std(1, keepdim=True) + 1e-4)).view(-1, 1)
    tokens, before, mask = (batch.extra[name].values for name in COLUMNS)
    ratio = (policy(tokens[:, :-1])[0].gather(2, tokens[:, 1:, None].long()).squeeze(2) - before[:, 1:]).exp()
    gain = torch.min(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage)
    optimizer.zero_grad()
    (-(gain * mask[:, 1:]).sum(1) / mask[:, 1:].sum(1)).mean().backward()
    optimizer.step()


def train():
    policy, actors, first = Policy(), [None] * args.actors, 0
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
    sampler = dr.Groups(by="prompt", group_size=GROUP, version="version", within=args.within)
    rb = dr.ReplayBuffer.open_or_create(
        STORE, spaces.Discrete(PROMPTS), spaces.Discrete(1), capacity=100_000, columns=COLUMNS, stream="trainer",
        sampler=dr.Counting(sampler, max_times_sampled=args.uses), checkpoint="latest", seed=args.seed,
    )  # fmt: skip
    if rb.restored:
        with rb.attachment("learner.pt") as file:
            saved = torch.load(file)
        policy.load_state_dict(saved["policy"]), optimizer.load_state_dict(saved["optimizer"])
        first = saved["version"]
        print(f"resumed at checkpoint {rb.restored.name}; no finished step or rollout is lost")
    for step in range(first, args.steps + 1):
        if step > first:
            batch = draw(rb, actors)
            learn(policy, optimizer, batch.torch())
            rb.begin_episode(version=step, used=batch.index[::GROUP].tolist())  # the first rollout of each group
            rb.add(0, 0, 0.0, 0, True, False, **{name: np.zeros(0, dtype) for name, (_, dtype) in COLUMNS.items()})
        state = {"version": step, "policy": policy.state_dict(), "optimizer": optimizer.state_dict()}
        if step > first or not rb.restored:
            files = {"learner.pt": lambda file: torch.save(state, file)}  # noqa: B023
            rb.checkpoint(f"step-{step}", attachments=files, keep=1)
            print(f"step {step}: average return {batch.reward.mean() if step else np.nan:.2f}\ncheckpoint step-{step}")
        torch.save(state, args.path / "partial.pt")
        (args.path / "partial.pt").replace(PUBLISHED)  # after the checkpoint: no version is ever two policies
    for actor in filter(None, actors):
        actor.join()
    rb.close()


if __name__ == "__main__":
    train()
