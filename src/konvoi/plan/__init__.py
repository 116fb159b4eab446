"""What a run would take in a set-up: profile and links in, seconds, efficiency and bytes out. Never imports torch.

    predict(profile, setup, traffic) -> Prediction

The profile is what one worker's step takes (profile.py), the set-up hosts and links (setup.py), the traffic what a way
to synchronise declares (sync/_traffic.py).
"""

from konvoi.plan.predict import Prediction, predict
from konvoi.plan.profile import Profile
from konvoi.plan.setup import Host, Link, Setup
from konvoi.plan.traffic import Traffic

__all__ = ["Host", "Link", "Prediction", "Profile", "Setup", "Traffic", "predict"]
