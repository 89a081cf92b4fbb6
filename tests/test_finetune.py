"A run's model, trained on a new site: the same bits, every class by its name, small sites, saved and loaded."
import pytest, torch
import fdgnb
from conftest import one_line
from fdgnb import Dataset, Domain, FdgnbError, finetune, load
from fdgnb.core import generator
from fdgnb.runs.finetune import entries_of, part_site

refused = lambda says: pytest.raises(FdgnbError, match=says)
SHORT = dict(target="blended", rounds=2, lr=.05, batch_size=16, progress=False, eval_local=0)


@pytest.fixture(scope="module")
def folder(tiny, tmp_path_factory):
    out = tmp_path_factory.mktemp("run")
    fdgnb.fit("fedbn", tiny, out=out, **SHORT)
    return out


@pytest.fixture
def site(tiny): return tiny["blended"]


def state(tuned): return tuned.model.state_dict()


def moved(tuned, run):
    "The names of the entries that fine-tuning changed."
    before = run.model.state_dict()
    return {k for k, v in state(tuned).items() if not v.equal(before[k])}


def test_the_same_call_gives_the_same_bits_from_wherever_the_run_is_read(tiny, folder, site):
    run = fdgnb.fit("fedbn", tiny, out=folder, **SHORT)
    first = finetune(run, site, epochs=3)
    for again in (run, load(folder), folder, str(folder)):
        other = finetune(again, site, epochs=3)
        assert all(v.equal(state(first)[k]) for k, v in state(other).items()) and other.history.equals(first.history)
    assert not all(v.equal(state(first)[k]) for k, v in state(finetune(run, site, epochs=3, seed=1)).items())
    assert finetune(run, site, epochs=1, domain="inked").score(0) == finetune(run, site, epochs=3,
                                                                              domain="inked").score(0)


def test_only_the_part_that_is_named_moves(folder, site):
    kept = load(folder)
    statistics = lambda keys: {k for k in keys if "running" in k or "num_batches" in k}
    heads, norms = moved(finetune(kept, site, "head"), kept), moved(finetune(kept, site, "bn"), kept)
    assert heads and all(k.startswith("head.") for k in heads)
    assert statistics(norms) and all("weight" in k or "bias" in k for k in norms - statistics(norms))
    whole = moved(finetune(kept, site, "all"), kept)
    assert heads <= whole and not statistics(whole)


def test_history_scores_both_parts_from_before_to_the_last_epoch(folder, site):
    tuned = finetune(folder, site, epochs=4)
    assert sorted(tuned.history.epoch.unique()) == [0, 1, 2, 3, 4]
    rows = part_site(site, site.y, .2, 0)["test"]
    right = (tuned.predict(site.x[rows]).argmax(1) == site.y[rows]).float().mean().item()
    last = tuned.history.query("epoch == 4 and split == 'test' and metric == 'accuracy'")["value"].item()
    assert last == pytest.approx(right, abs=1e-6) and f"{100*right:.1f} %" in repr(tuned)


def test_it_learns_what_the_run_has_never_seen():
    "Two classes that the site's images show the other way round."
    g = generator(0)
    x = torch.randint(0, 100, (40, 3, 16, 16), generator=g).to(torch.uint8)
    y = torch.arange(40) % 2
    x[y == 1] += 100
    data = Dataset("tone", {n: Domain(n, x, y) for n in "ab"}, ["dark", "light"], defaults=dict(backbone="cnn2"))
    run = fdgnb.fit("fedavg", data, None, 5, batch_size=8, progress=False)
    tuned = finetune(run, Domain("new", x, 1 - y), epochs=20)
    assert tuned.score(0) == "0.0 %" and tuned.score(20) == "100.0 %"


def test_classes_go_by_their_names(folder, site, tiny):
    "In another order, and some of them missing, as the run numbers them; an unknown one is refused."
    order = [7, 2, 0]
    keep = torch.isin(site.y, torch.tensor(order))
    y = torch.tensor([order.index(int(c)) for c in site.y[keep]])
    other = Dataset("site", {"new": Domain("new", site.x[keep], y)}, [tiny.classes[c] for c in order])
    plain = finetune(folder, Domain("new", site.x[keep], site.y[keep]), epochs=2)
    named = finetune(folder, other, epochs=2)
    assert named.predict(site).equal(plain.predict(site))
    with refused("the run has no class 'cat'") as e: finetune(folder, Dataset("c", other.domains, ["cat", "2", "0"]))
    assert one_line(e)


def test_a_folder_of_images_is_read_at_the_run_s_size(folder, site, tmp_path):
    from PIL import Image
    for i, (x, y) in enumerate(zip(site.x[:12], site.y[:12])):
        (at := tmp_path/"new"/"st_mary"/str(int(y))).mkdir(parents=True, exist_ok=True)
        Image.fromarray(x.permute(1, 2, 0).numpy()).resize((40, 40)).save(at/f"{i}.png")
    tuned = finetune(folder, f"{tmp_path}/new", epochs=1)
    assert tuned.args["site"] == "st_mary" and tuned.args["n_train"] + tuned.args["n_test"] == 12


@pytest.mark.parametrize("n", [1, 2, 3, 5, 17, 33])
@pytest.mark.parametrize("which", ["all", "head", "bn"])
def test_small_sites_do_not_explode(folder, site, n, which):
    "Few samples, and a number that leaves a short last batch."
    few = Domain("few", site.x[:n], site.y[:n])
    if which == "bn" and n < 3:
        with refused("which='bn' needs two"): finetune(folder, few, which)
        return
    tuned = finetune(folder, few, which, epochs=3)
    assert tuned.history.value.max() < 20 and tuned.args["n_train"] >= 1


def test_a_site_s_own_split_goes_before(folder, site):
    "As one by patients would: the rows of its test part are not trained on."
    own = Domain("own", site.x, site.y,
                 split=dict(train=torch.arange(5, 40), val=torch.arange(0), test=torch.arange(5)))
    parts = part_site(own, own.y, .2, 0)
    assert parts["test"].tolist() == [*range(5)] and parts["train"].tolist() == [*range(5, 40)]
    assert finetune(folder, own, epochs=1).args["n_test"] == 5


def test_saved_loaded_exported_and_tuned_further(folder, site, tmp_path):
    tuned = finetune(folder, site, epochs=2)
    tuned.save(tmp_path/"tuned")
    back = load(tmp_path/"tuned")
    assert back.predict(site).equal(tuned.predict(site)) and back.history.equals(tuned.history)
    assert back.args == tuned.args and back.classes == tuned.classes and repr(back) == repr(tuned)
    assert back.export(tmp_path/"m.pt2").exists()
    further = finetune(tmp_path/"tuned", site, epochs=1)
    assert further.score(0) == tuned.score(2)
    with refused("holds a run: choose another folder"): tuned.save(folder)
    with refused("fine-tuned already"): back.adapt(site.x)
    with refused("leave out domain and rule"): back.predict(site.x, rule="last")
    file = tmp_path/"tuned"/"tuned.safetensors"
    for bad in (file.read_bytes()[:-9], b"", next(folder.glob("round-*")).read_bytes()):
        file.write_bytes(bad)
        with refused("torn or was not written|holds no fine-tuned model") as e: load(tmp_path/"tuned")
        assert one_line(e)


def test_what_is_wrong_is_one_line(folder, site, tiny):
    vectors = Domain("v", torch.zeros(4, 5), torch.zeros(4).long())
    for call, says in [(lambda: finetune(folder, tiny), "name the site: site='optical'"),
                       (lambda: finetune(folder, tiny, site="blendet"), "did you mean 'blended'"),
                       (lambda: finetune(folder, vectors), r"a batch \(N, 3, 28, 28\)"),
                       (lambda: finetune(folder, 3), "neither a name"), (lambda: finetune(3, site),
                                                                         "a run, or the folder"),
                       (lambda: finetune(folder, site, epochs=0), "epochs=0"),
                       (lambda: finetune(folder, site, which=[]), "which"),
                       (lambda: finetune(folder, site, lr=1e9),
                        "not finite in epoch 1, or exploded: choose a smaller rate"),
                       (lambda: finetune(folder, site, domain="inkt"), "did you mean 'inked'"),
                       (lambda: finetune(folder, site, rule="sourceval"), "did you mean 'source_val'"),
                       (lambda: entries_of(torch.nn.Linear(2, 2, device="meta"), "bn"),
                        "no BatchNorm layer: use which='all'"),
                       (lambda: finetune(folder/"none", site), "no weights in")]:
        with refused(says) as e: call()
        assert one_line(e)


def test_a_patient_of_the_new_site_stays_in_one_part(site):
    patients = torch.arange(len(site)) // 3
    parts = part_site(Domain("new", site.x, site.y, groups=patients), site.y, .2, 0)
    trained, tested = (set(patients[parts[k]].tolist()) for k in ("train", "test"))
    assert trained and tested and not trained & tested


def test_a_bare_network_is_no_run(folder, site):
    with refused("give the run, and domain="): finetune(load(folder).model, site)


def test_a_site_is_read_by_the_run_s_white(tmp_path):
    "12-bit images that stay dark: tuned on four times the brightness that predict shows."
    from PIL import Image
    import numpy as np
    def fill(home, names, most):
        for name in names:
            for c in "kl":
                folder = tmp_path/home/name/c
                folder.mkdir(parents=True)
                for i in range(6): Image.fromarray(np.full((16, 16), most - i, np.uint16)).save(folder/f"{i}.png")
    fill("old", "ab", 4095)
    fill("new", "c", 999)
    run = fdgnb.fit("fedavg", fdgnb.from_folder(tmp_path/"old", size=16, white=4095), rounds=1, progress=False)
    assert finetune(run, f"{tmp_path}/new", epochs=1).args["n_train"]
    with pytest.warns(UserWarning): other = fdgnb.from_folder(tmp_path/"new", size=16)
    with refused("read with 1023 as white, the run's images with 4095"): finetune(run, other, epochs=1)
    from fdgnb.runs.finetune import read_like
    assert read_like(run, f"{tmp_path}/new", 16).white == 4095
