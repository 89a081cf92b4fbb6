"""Golden numbers of the style methods: what the authors' functions give on small fixed inputs.

    python tests/golden/style.py ELCFS HARMOFL CCST FEDFA

ELCFS: liuquande/FedDG-ELCFS; HARMOFL: med-air/HarmoFL; CCST: JeremyCJM/CCST; FEDFA: tfzhou/FedFA, at the
commits below. Where a function stands in a script, it alone is taken out of it and run; HarmoFL's Cython file
is run as Python, without its types but for the one that changes a result: momentum is an integer.
"""
import ast, json, re, sys
from collections import namedtuple
from pathlib import Path
import numpy as np
import torch
from torch import nn

FILE = Path(__file__).with_suffix(".json")
ADAIN = "style_transfer/AdaIN"
SOURCES = dict(
    elcfs=dict(repository="liuquande/FedDG-ELCFS", commit="0a281e408a43d5ab4486f213dd286dacc733dd41",
               function="freq_space_interpolation of freq_space_interpolation_demo.py"),
    harmofl=dict(repository="med-air/HarmoFL", commit="63182fe8425f84f6720007386b4b6bc8e1e7e8b8",
                 function="normalize, process of utils/amp_utils.pyx, WPOptim of "
                          "utils/weight_perturbation.py"),
    ccst=dict(repository="JeremyCJM/CCST", commit="87c3e448cfa28c366b58d17f8dffc5d3d83574e5",
              function="adaIN_StyleStat_ContentFeat of function.py, calc_sum of "
                       "mean_std_computation_effcientMem.py, vgg, decoder of net.py, all in " + ADAIN),
    fedfa=dict(repository="tfzhou/FedFA", commit="57e95822e4df90a77cfa9402d03f09e094be9094",
               function="FFALayer.forward of pyfed/utils/ffa_layer.py; FedFAComm of pyfed/manager/comm.py"))
SPECTRA = [(0., .75), (.3, .25), (.3, 0.)]                     # share of the side; the image's own weight


def inputs():
    "Numbers in eighths: images and their partners, feature maps, clients' statistics, noise, weights."
    g = torch.Generator().manual_seed(12)
    eighths = lambda *s: torch.randint(-8, 9, s, generator=g).double()/8
    return dict(x=eighths(3, 2, 6, 5), other=eighths(3, 2, 6, 5), maps=eighths(4, 3, 4, 3),
                v=eighths(2, 3).abs() + .125, clients=eighths(4, 2, 1), noise=eighths(4, 2, 3), w=eighths(5))


def filled(net):
    "The network with numbers in sixty-fourths for weights; its output has a size of about one."
    g = torch.Generator().manual_seed(13)
    for p in net.parameters():
        p.data = torch.randint(-8, 9, p.shape, generator=g).double()/8/p[0].numel()**.5
    return net.double()


def taken(path, *names, **room):
    "Functions and classes of a script, without running the rest of it."
    room = dict(np=np, torch=torch, nn=nn) | room
    tree = ast.parse(path) if isinstance(path, str) else ast.parse(path.read_text())
    tree.body = [d for d in tree.body if getattr(d, "name", None) in names]
    exec(compile(tree, "theirs", "exec"), room)
    return namedtuple("Theirs", names)(*(room[n] for n in names))


def without_types(source):
    "Cython as Python: declarations with a value keep it, the others go."
    source = re.sub(r"np\.ndarray\[[^]]*\] ", "", re.sub(r"(?m)^.*\bcimport\b.*$", "", source))
    source = re.sub(r"(?m)^(\s*)cdef [^=\n]*?(\w+) = ", r"\1\2 = ", source)
    source = re.sub(r"(?m)^(\s*)cdef (\w+ = )", r"\1\2", source)
    source = re.sub(r"(?m)^\s*cdef .*$", "", source)
    return source.replace("int momentum, bint fix_amp):", "momentum, fix_amp):\n    momentum = int(momentum)")


def harmofl(checkout, v):
    "One image under another amplitude, the running amplitude after two batches, one perturbed step."
    amp = taken(without_types((checkout/"utils"/"amp_utils.pyx").read_text()),
                "extract_amp", "mutate", "normalize", "process")
    x, other = (v[k].float().numpy() for k in ("x", "other"))
    there = [amp.normalize(x[0], np.abs(np.fft.fft2(other[0])), L).tolist() for L in (0, .3, .5)]
    running = np.zeros(x.shape[1:], np.float32)
    for batch in (x.copy(), other.copy()): _, running = amp.process(batch, running, .1, False)
    optim = taken(checkout/"utils"/"weight_perturbation.py", "WPOptim")
    w = nn.Parameter(v["w"].clone())
    step = optim.WPOptim([w], base_optimizer=torch.optim.SGD, lr=.5, alpha=.25)
    w.pow(4).sum().backward()
    step.generate_delta(zero_grad=True)
    w.pow(4).sum().backward()
    step.step(zero_grad=True)
    return dict(normalized=there, running=running.tolist(), step=w.tolist())


def ccst(checkout, v):
    "Maps in the style of four others, pooled; what VGG and the decoder give, with weights filled in."
    stats = taken(checkout/ADAIN/"function.py", "adaIN_StyleStat_ContentFeat", "calc_mean_std")
    s, q, n = taken(checkout/ADAIN/"mean_std_computation_effcientMem.py", "calc_sum").calc_sum(v["maps"])
    style = s/n, torch.sqrt(q/n - (s/n)**2 + 1e-5)
    theirs = dict(nn=nn)
    nets = (checkout/ADAIN/"net.py").read_text().split("class Net")[0]
    exec(re.sub(r"(?m)^from function.*$", "", nets), theirs)
    vgg = filled(nn.Sequential(*list(theirs["vgg"].children())[:31]))
    with torch.no_grad():
        z = vgg(torch.linspace(0, 1, 3*20*12, dtype=torch.float64).reshape(1, 3, 20, 12))
        out = filled(theirs["decoder"])(z)
    return dict(restyled=stats.adaIN_StyleStat_ContentFeat(v["maps"].flip(0)**2, style).tolist(),
                style=torch.cat(style).flatten(1).tolist(),
                keys=[*vgg.state_dict(), *theirs["decoder"].state_dict()],
                z=[list(z.shape), z.flatten()[::199].tolist()],
                out=[list(out.shape), out.flatten()[::37].tolist()])


def fedfa(checkout, v):
    "The layer's output on maps with given noise, and the server's variance over clients of one channel."
    ffa = taken(checkout/"pyfed"/"utils"/"ffa_layer.py", "FFALayer").FFALayer(prob=1., nfeat=3)
    ffa.running_var_mean_bmic, ffa.running_var_std_bmic = v["v"]
    noise = iter(v["noise"].unbind(1))
    ffa.gaussian_sampling = lambda mu, std: next(noise)*std + mu
    out = ffa(v["maps"])
    client = lambda s: {"running_mean_bmic": s[0], "running_std_bmic": s[1]}
    each = [client(s) for s in v["clients"]]
    names = [f"running_{a}{b}_bmic" for a in ("", "var_") for b in ("mean", "std")]
    holding = lambda d: namedtuple("Holder", "state_dict")(lambda: d)
    whole = [{n: c[n.replace("var_", "")] for n in names} for c in each]
    server = {n: torch.zeros(1) for n in names}
    taken(checkout/"pyfed"/"manager"/"comm.py", "FedFAComm").FedFAComm()(
        [holding(c) for c in whole], [.25]*4, holding(server))
    return dict(out=out.tolist(), v=[server[n].tolist() for n in names[2:]])


def main(*checkouts):
    torch.set_default_dtype(torch.float64)
    v, (elcfs, harmo, transfer, fa) = inputs(), map(Path, checkouts)
    freq = taken(elcfs/"freq_space_interpolation_demo.py", "extract_amp_spectrum", "amp_spectrum_swap",
                 "freq_space_interpolation").freq_space_interpolation
    x, other = v["x"].numpy(), np.abs(np.fft.fft2(v["other"].numpy()))
    spectra = [freq(x[i], other[i], L, own).tolist() for i, (L, own) in enumerate(SPECTRA)]
    found = dict(elcfs=spectra, harmofl=harmofl(harmo, v), ccst=ccst(transfer, v), fedfa=fedfa(fa, v))
    FILE.write_text(json.dumps(dict(sources=SOURCES, torch=torch.__version__, found=found), indent=1) + "\n")


if __name__ == "__main__": main(*sys.argv[1:])
