"Short runs on a few images of 16 pixels, for tests that play many methods."
import fdgnb
from digests import data, network
from fdgnb.federation.compose import hyper_names, method_class

LIGHT = dict(vhl_n=64, mmd_batch=8, votes=16, samples=16, target_samples=16, S=8)   # where a method has them
TINY = dict(target="t", rounds=1, seed=3, lr=.01, batch_size=8, local_steps=1, eval_every=0, workers=1,
            progress=False)


def bars(n=12):
    "A few images of 16 pixels in the domains a, b, c and t, for the network `bars`."
    if "bars" not in fdgnb.models.MODELS: fdgnb.models.add_backbone("bars", network, (3, 16, 16))
    return data(16, n=n)


def short(key, images=None, **given):
    "A round or more of a method or a sum on a few images of 16 pixels."
    own = hyper_names(method_class(key))
    light = {k: v for k, v in LIGHT.items() if k in own}
    return fdgnb.fit(key, images or bars(), **TINY | dict(backbone="bars") | light | given)
