"""The moving average of the weights, which validation and checkpoints use."""

from lightning.pytorch.callbacks import WeightAveraging
from torch.optim.swa_utils import get_ema_multi_avg_fn


class MovingAverage(WeightAveraging):
    """Exponential moving average after every optimizer step, all parameters in one call.

    Lightning's own ``EMAWeightAveraging`` goes from parameter to parameter, which takes several
    times as long. Buffers are not averaged: the table of positions is a constant, and an average
    would round it.

    Args:
        decay: ``average = decay * average + (1 - decay) * weights``, in [0, 1].
    """

    def __init__(self, decay: float = 0.995) -> None:
        super().__init__(use_buffers=False, multi_avg_fn=get_ema_multi_avg_fn(decay))
