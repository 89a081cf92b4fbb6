"""Twenty random federations of somebody's own, trained with every default: does a first run learn?

Two to six clients, 20 to 300 images each, 16 to 128 pixels, one to twelve classes, skewed; classes differ in color,
gray level, stripes or shape, clients in brightness and noise. Scored on 200 fresh images a client.

    python bench/first_runs.py [ROUNDS]
"""
import os, sys
os.environ.setdefault("CI", "1")
import numpy as np
import pandas as pd
import fdgnb

FRESH = 200


def paint(kind, label, n_classes, size, rng):
    "One clean image (3, size, size) of a class."
    place = np.arange(size)
    if kind == "color":
        color = np.random.default_rng(label).uniform(30, 225, 3)
        return np.broadcast_to(color[:, None, None], (3, size, size))
    if kind == "gray": return np.full((3, size, size), np.linspace(40, 215, n_classes)[label])
    if kind == "stripes":
        angle = np.pi*label/n_classes
        along = np.cos(angle)*place[:, None] + np.sin(angle)*place
        wave = 128 + 80*np.sin(12*np.pi*along/size + rng.uniform(0, 2*np.pi))
        return np.broadcast_to(wave, (3, size, size))
    quarter = size//4
    bits = ((label + 1) >> np.arange(4) & 1).reshape(2, 2)
    shape = np.kron(bits, np.ones((quarter, quarter)))
    top, left = rng.integers(0, size - 2*quarter + 1, 2)
    image = np.full((3, size, size), 128.)
    image[:, top:top + 2*quarter, left:left + 2*quarter] += 90*shape
    return image


def draw_client(kind, n, shares, size, look, rng):
    "Images uint8 (n, 3, size, size) and labels (n,) of a client. look: (shift of brightness, noise)."
    y = rng.choice(len(shares), n, p=shares)
    x = np.stack([paint(kind, label, len(shares), size, rng) for label in y])
    shift, noise = look
    return (x + shift + rng.normal(0, noise, x.shape)).clip(0, 255).astype(np.uint8), y


def draw_federation(number):
    "(what it is, {client: (x, y)} to train on, {client: (x, y)} to be scored on) of a random federation."
    rng = np.random.default_rng(number)
    n_classes = 1 if number == 0 else int(rng.integers(2, 13))
    kind, size = str(rng.choice(["color", "gray", "stripes", "shapes"])), int(rng.choice([16, 24, 32, 48, 64, 96, 128]))
    shares = .5*rng.dirichlet(np.ones(n_classes)) + .5/n_classes
    step = 175/max(n_classes - 1, 1) if kind == "gray" else 75
    train, fresh = {}, {}
    for k in range(int(rng.integers(2, 7))):
        look = rng.normal(0, step/12), rng.uniform(5, 25)
        train[f"site {k}"] = draw_client(kind, int(rng.integers(20, 301)), shares, size, look, rng)
        fresh[f"site {k}"] = draw_client(kind, FRESH, shares, size, look, rng)
    images = sum(len(y) for _, y in train.values())
    what = dict(kind=kind, clients=len(train), images=images, pixels=size, classes=n_classes)
    return what, train, fresh


def try_federation(number, rounds):
    "A row: what the federation is, accuracy on fresh images, share of the largest class, largest loss, verdict."
    what, train, fresh = draw_federation(number)
    labels = np.concatenate([y for _, y in fresh.values()])
    row = what | dict(largest=np.bincount(labels).max()/len(labels))
    try: run = fdgnb.fit("fedavg", fdgnb.from_arrays(train, classes=[f"kind {c}" for c in range(what["classes"])]),
                         rounds=rounds, progress=False)
    except fdgnb.FdgnbError as e: return row | dict(verdict=f"refused: {e}"[:60])
    right = [(run.predict(x).argmax(1).numpy() == y).mean() for x, y in fresh.values()]
    loss = run.history.query("metric == 'loss'").value.max()
    verdict = "exploded" if loss > 100 else "learned" if np.mean(right) > row["largest"] else "no better"
    return row | dict(accuracy=np.mean(right), loss=loss, verdict=verdict)


def main(rounds=20):
    "Print the table."
    table = pd.DataFrame([try_federation(i, rounds) for i in range(20)])
    print(table.to_string(float_format="{:.2f}".format, na_rep=""))
    learned, exploded = (table.verdict == "learned").sum(), (table.verdict == "exploded").sum()
    print(f"\n{learned} of {len(table)} learned, {exploded} exploded")


if __name__ == "__main__": main(*map(int, sys.argv[1:]))
