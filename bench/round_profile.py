"""Where a round's time goes: torch's profiler over the third round of a method, clients one after the other.

    python bench/round_profile.py alexnet_bn fedavg [bfloat16]"""
import sys
import torch
from torch.profiler import ProfilerActivity, profile
from fdgnb.federation.loop import downloads, federated_round
from fdgnb.federation.engine import keep_large_blocks
from fdgnb.runs.plan import plan
from fdgnb.runs.setup import Federation
from runner import LR, WORK, dataset


def main(name, method, precision="float32", rows=12):
    keep_large_blocks()
    torch.set_num_threads(1)
    work, how = WORK[name], dict(lr=LR, fractions=(1., 0., 0.), precision=precision)
    fed = Federation(plan(method, dataset(**work), rounds=3, backbone=name, batch_size=work["batch"], **how))
    down = downloads(fed.method, fed.server)
    for r in (0, 1): down = federated_round(fed.method, fed.server, fed.clients, fed.net, down, r)
    with profile(activities=[ProfilerActivity.CPU]) as p:
        federated_round(fed.method, fed.server, fed.clients, fed.net, down, 2)
    print(p.key_averages().table(sort_by="self_cpu_time_total", row_limit=rows, max_name_column_width=40))


if __name__ == "__main__": main(*sys.argv[1:])
