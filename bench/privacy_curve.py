"""Accuracy on the target against epsilon, on digits cut into many clients: reports/privacy/curve.csv.

    python bench/privacy_curve.py [SEED ...]

A seed takes minutes; 0, 1 and 2 unless others are named."""
import sys
import pandas as pd
import fdgnb
from fdgnb.core import root
from fdgnb.federation.node import evaluate

ROUNDS = 15
RUN = dict(rounds=ROUNDS, partition=("split", 100), per_round=80, backbone="lenet", size=16, lr=.3, local_epochs=5,
           client_weights="uniform", eval_every=0, diverge="go", progress=False)
CLIP = 3.                                               # below the length of most changes
NOISES = None, 0., .1, .2, .3, .5, 1.                   # None: not clipped either


def curve_point(noise, seed):
    "A row of the table."
    private = {} if noise is None else dict(dp_clip=CLIP, dp_noise=noise)
    run = fdgnb.fit("fedavg", "digits", seed=seed, **RUN, **private)
    accuracy, _ = evaluate(run.model_of(), run.fed.target_client, "target")
    known = {} if noise is None else {k: run.privacy[k] for k in ("epsilon", "unsampled", "delta")}
    return dict(clients=len(run.fed.clients), drawn=RUN["per_round"], rounds=ROUNDS, noise=noise, seed=seed,
                **known, accuracy=accuracy)


if __name__ == "__main__":
    seeds = [int(word) for word in sys.argv[1:]] or [0, 1, 2]
    rows = [curve_point(noise, seed) for noise in NOISES for seed in seeds]
    table = pd.DataFrame(rows)
    file = root()/"reports"/"privacy"/"curve.csv"
    file.parent.mkdir(exist_ok=True)
    table.to_csv(file, index=False, float_format="%.4g")
    print(table.to_string(index=False))
