"The widget of a run: what it shows follows its menus, of a run and of its folder."
import sys
import pytest
import fdgnb
from conftest import run, says

pytest.importorskip("ipywidgets")


def look(widget, **chosen):
    "(the picture, the choices of each menu) after a choice."
    menus = {menu.description: menu for menu in widget.children[:-1]}
    for name, label in chosen.items(): menus[name].label = label
    return widget.children[-1].value, {name: [*menu._options_labels] for name, menu in menus.items()}


def test_a_run_and_its_folder_show_the_same(tiny, tmp_path, monkeypatch):
    done = run("ditto", tiny, out=tmp_path, rounds=3, lr=.3, eval_every=1)
    done.save()
    widget, saved = done.explore(), fdgnb.load(tmp_path).explore(tiny)
    first, menus = look(widget)
    assert look(saved) == (first, menus) and widget._repr_png_() == first
    assert menus["domain"][0] == "blended" and menus["class"] == ["all", *tiny.classes]
    assert menus["round"] == [str(r) for r in sorted({*done.chosen.values()}, reverse=True)]
    pictures = [first, look(widget, domain="inked")[0], look(widget, **{"class": "3"})[0]]
    assert len(set(pictures)) == 3 and look(saved, domain="inked")[0] == pictures[1]
    with pytest.warns(UserWarning, match="no pictures"): assert look(fdgnb.load(tmp_path).explore("mnist"))[0] != first
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    says(done.explore, "pip install ipywidgets")
