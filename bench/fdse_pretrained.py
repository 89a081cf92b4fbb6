"""FDSE beside FedAvg from ImageNet's weights on Office-Caltech10 at 96 pixels, a domain held out, round by round.

Minutes a run on one core. By the default start of pretrained runs, FDSE begins as the pretrained network; it should
reach FedAvg's accuracy within three points.

    FDGNB_DATA=... python bench/fdse_pretrained.py [TARGET] [ROUNDS] [METHOD ...]
"""
import os, sys
os.environ.setdefault("CI", "1")
import torch
import fdgnb

NET = dict(size=96, backbone="timm:tf_efficientnet_lite0", pretrained="packaged")


def accuracies(method, target, rounds):
    "The target's accuracy after each round, {point: [accuracy]}, aggregated and adapted."
    run = fdgnb.fit(method, "office_caltech10", target=target, rounds=rounds, seed=0, protocol="common", scale="cpu",
                    adapt="every", progress=False, **NET)
    rows = run.history.query("split == 'target' and metric == 'accuracy'")
    by_point = rows.sort_values("round").groupby("point")
    return {point: group.value.round(3).tolist() for point, group in by_point}


if __name__ == "__main__":
    torch.set_num_threads(1)
    target, rounds, *methods = sys.argv[1:] or ["dslr", "3"]
    for method in methods or ["fedavg", "fdse"]:
        print(method, accuracies(method, target, int(rounds)), flush=True)
