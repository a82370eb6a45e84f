"""The command line."""

import os

# OpenMP's threads wait for work by spinning, which is a little faster on an idle machine and less
# than half as fast where anything else runs beside (a browser, TensorBoard, a second training).
# It must be said before PyTorch is imported; whoever sets it otherwise is heeded.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
