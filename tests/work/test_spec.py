from __future__ import annotations

from pathlib import Path

import pytest

from gpucheck.errors import TargetError, UsageError
from gpucheck.work.spec import Axis, Input, Target, parse_axis, parse_input, parse_inputs, parse_target, sized


def test_targets() -> None:
    assert parse_target("mlp") == Target("mlp", built_in="mlp")
    assert parse_target("my.models:make") == Target("my.models:make", module="my.models", attribute="make")
    assert parse_target("models:Net.small").attribute == "Net.small"


def test_a_file(tmp_path: Path) -> None:
    file = tmp_path / "models.py"
    file.write_text("")
    assert parse_target(f"{file}:make") == Target(f"{file}:make", file=str(file), attribute="make")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "transfomer",
            "the target 'transfomer' is not understood; did you mean transformer? write package.module:factory, "
            "path/to/file.py:factory, or one of mlp, convnet, transformer",
        ),
        ("models.py:", "the target 'models.py:' is not understood"),
        (":make", "the target ':make' is not understood"),
        ("a:b c", "the target 'a:b c' names no function; 'b c' is not a Python name"),
        ("nowhere/models.py:make", "the target's file nowhere/models.py does not exist"),
        ("a-b:make", "the target 'a-b:make' names no module"),
    ],
)
def test_no_targets(text: str, message: str) -> None:
    with pytest.raises(TargetError) as caught:
        parse_target(text)
    assert str(caught.value).startswith(message)
    assert caught.value.exit_code == 2


def test_inputs() -> None:
    assert parse_input("image:3x224x224:float32") == Input("image", (3, 224, 224), "float32")
    assert parse_input("ids:1024:int64:0..50256") == Input("ids", (1024,), "int64", 0, 50256)
    assert parse_input("label::int64:0..9") == Input("label", (), "int64", 0, 9)
    assert parse_input("x:4:torch.bfloat16:-1.5..1e2") == Input("x", (4,), "bfloat16", -1.5, 100.0)


def test_a_shape_may_name_a_dimension() -> None:
    assert parse_input("ids:seq:int64:0..9") == Input("ids", ("seq",), "int64", 0, 9)
    image = parse_input("image:3xsidexside:float32")
    assert image.shape == (3, "side", "side")
    assert sized(image, "side", 64).shape == (3, 64, 64)
    assert sized(image, None, 64) == image


def test_an_axis() -> None:
    assert parse_axis("seq") == Axis("seq")
    assert parse_axis("side:32..1024") == Axis("side", 32, 1024)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "--axis '' is not understood; write it like NAME[:LOW..HIGH], like seq or seq:128..8192"),
        ("max", "--axis 'max' is not understood"),  # an x stands between two sizes
        ("seq:5", "--axis 'seq:5' is not understood"),
        ("seq:0..5", "--axis 'seq:0..5' has no length; 0..5 is not a range from 1 up"),
        ("seq:6..5", "--axis 'seq:6..5' has no length; 6..5 is not a range from 1 up"),
    ],
)
def test_no_axis(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_axis(text)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("x", ""),
        ("x:3", ""),
        ("3x:3:float32", ""),
        ("x:3:float33", "'float33' is not a dtype, did you mean float32?"),
        ("x:3x:float32", "'3x' is not a shape"),
        ("x:-3:float32", "'-3' is not a shape"),
        ("x:3x0:float32", "a size of 0 leaves nothing to compute"),
        ("x:99999999x99999999:float32", "one sample would have more than 2^40 elements"),
        ("x:3:int64:0..1.5", "'0..1.5' is not a range of int64"),
        ("x:3:int64:9..1", "9 is above 1"),
        ("x:3:float32:a..b", "'a..b' is not a range of float32"),
        ("x:3:float32:0..1:more", ""),
    ],
)
def test_no_inputs(text: str, why: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_input(text)
    assert caught.value.what == f"--input {text!r} is not understood"
    assert caught.value.why == why


def test_an_input_stands_once() -> None:
    with pytest.raises(UsageError, match="--input 'x' is given twice"):
        parse_inputs(("x:3:float32", "x:4:float32"))


# --- a file without the name of what is in it -------------------------------------------------------------------------

NN = "from torch import nn\n"
NET = "class Net(nn.Module):\n    def __init__(self, width=3):\n        super().__init__()\n"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (NET, "Net"),
        (NET.replace("nn.Module", "LightningModule"), "Net"),
        # What another one is made of, or derives from, is not meant.
        (f"class Block(nn.Module): pass\n{NET}        self.block = Block()\n", "Net"),
        (f"class Base(nn.Module): pass\n{NET.replace('nn.Module', 'Base')}", "Net"),
        (f"{NET}def make():\n    return Net(5)\n", "make"),
        (f"{NET}def make(*, n=1):\n    model = Net(n).to('cpu')\n    return model\n", "make"),
        ("def make() -> nn.Module:\n    return load()\n", "make"),
        ("model = nn.Sequential(nn.Linear(2, 2))\n", "model"),
        (f"{NET.replace('width=3', 'width')}model = Net(3)\n", "model"),
        # What a program does inside functions or behind its guard is no matter.
        (f"{NET}def main():\n    train(Net())\nif __name__ == '__main__':\n    for _ in range(3): main()\n", "Net"),
    ],
)
def test_the_one_module_of_a_file(text: str, name: str, tmp_path: Path) -> None:
    file = tmp_path / "net.py"
    file.write_text(f"{NN}raise SystemExit('imported')\n{text}")
    assert parse_target(str(file)) == Target(f"{file}:{name}", file=str(file), attribute=name)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "def main(): pass\n",
            " has no module or factory that needs no arguments; it has no class of torch.nn.Module; ",
        ),
        (
            NET.replace("width=3", "width, *, depth"),
            " needs no arguments; Net needs width, depth; add def make(): return ",
        ),
        (f"{NET}class Other(nn.Module): pass\n", " has 2 modules; name one: "),
        ("model = nn.Linear(\n", " cannot be read; "),
        (
            f"{NET}net = Net()\nfor x in data:\n    net(x).backward()\n",
            " trains as it is imported; line 6 is not inside",
        ),
    ],
)
def test_a_file_that_names_no_module_is_refused(text: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "net.py"
    file.write_text(NN + text)
    with pytest.raises(TargetError) as raised:
        parse_target(str(file))
    assert str(raised.value).partition(".py")[2].find(words) >= 0, str(raised.value)
