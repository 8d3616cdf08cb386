"""The target: a causal language model that transformers loads, used four ways (`model.Target`).

`load` finds and opens it, `anatomy` finds its parts, `scales` reads how it scales embeddings and logits,
`lanes` continues batches with a cache.
"""

from remote_payload.target.lanes import Step
from remote_payload.target.model import Target

__all__ = ["Step", "Target"]
