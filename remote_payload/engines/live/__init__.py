"""Live speculative decoding: the cache path, independent of replay but for the drafter's arithmetic.

`loop` decodes one sequence, `verify` runs the target, `caches` takes tokens back, `masks` lets a tree through
in one pass, `rows` measures drafters with it.
"""

from remote_payload.engines.live.loop import LiveDecoder, LiveWalk, check_convention, check_shape
from remote_payload.engines.live.verify import make_verifier

__all__ = ["LiveDecoder", "LiveWalk", "check_convention", "check_shape", "make_verifier"]
