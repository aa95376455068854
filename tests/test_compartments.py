"""Plans: that they cover every parameter once, and how d is divided."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rbd_ref import compartments
from rbd_ref.spec.compartments import Plan
from rbd_ref.spec.plan_names import parse_cut, parse_dims, plan_of_tensors
from strategies import plans

sizes_of_compartments = st.lists(st.integers(1, 500), min_size=1, max_size=30)


@given(plans())
def test_layout_covers_every_element_and_coefficient_once(plan: Plan) -> None:
    elements = [j for k in range(plan.K) for j in range(plan.D)[plan.elements(k)]]
    coefficients = [i for k in range(plan.K) for i in range(plan.d)[plan.directions(k)]]
    assert elements == list(range(plan.D))
    assert coefficients == list(range(plan.d))


@given(plans())
def test_a_direction_is_found_in_its_compartment(plan: Plan) -> None:
    found = [plan.locate(index) for index in range(plan.d)]
    assert found == [(k, i) for k in range(plan.K) for i in range(plan.dims[k])]


@given(plans(), st.integers(1, 700))
def test_tiles_cover_every_element_once(plan: Plan, length: int) -> None:
    covered = np.zeros(plan.D, dtype=int)
    for k, first in plan.tiles(length).T:
        here = covered[plan.elements(int(k))]
        here[first : first + length] += 1
    assert (covered == 1).all()


@given(plans(), st.integers(0, 700), st.integers(0, 700))
def test_small_compartments_and_others(plan: Plan, most: int, another: int) -> None:
    for bound in (most, another, most):
        small, large = plan.by_size(bound)
        assert small.tolist() == [k for k in range(plan.K) if plan.sizes[k] <= bound]
        assert large == [k for k in range(plan.K) if plan.sizes[k] > bound]


@given(st.integers(1, 5000), st.data())
def test_even_sizes_differ_by_at_most_one(D: int, data: st.DataObject) -> None:
    k = data.draw(st.integers(1, D))
    plan = compartments.even(D, k=k, d=1)
    assert k == plan.K
    assert plan.D == D
    assert max(plan.sizes) - min(plan.sizes) <= 1
    assert list(plan.sizes) == sorted(plan.sizes, reverse=True)


def test_even_takes_d_for_each_or_a_total() -> None:
    assert compartments.even(4000, k=4, d=1000).dims == (1000,) * 4
    assert compartments.even(10, k=4, d=[3, 2, 1, 2]).dims == (3, 2, 1, 2)
    assert compartments.even(1001, k=4, total=10).dims == (3, 3, 2, 2)


@given(sizes_of_compartments, st.data())
def test_a_total_is_split_in_proportion(sizes: list[int], data: st.DataObject) -> None:
    """Every compartment has one at least and its size at most, and is within one of its share where it can be."""
    total = data.draw(st.integers(len(sizes), sum(sizes)))
    dims = compartments.split(total, sizes)
    assert sum(dims) == total
    assert all(1 <= d <= size for d, size in zip(dims, sizes, strict=True))
    share = [total * size / sum(sizes) for size in sizes]
    if min(share) >= 1:
        assert all(abs(d - s) < 1 for d, s in zip(dims, share, strict=True))


def test_layers_and_tensors() -> None:
    layers = [[784 * 128, 128], [128 * 10, 10]]
    assert compartments.by_layer(layers, d=5).sizes == (100_480, 1290)
    assert compartments.by_tensor(layers, d=5).sizes == (100_352, 128, 1280, 10)
    assert compartments.by_layer([100_480, 1290], total=250).dims == (247, 3)


@given(sizes_of_compartments, st.floats(1, 1000), st.integers(1, 5))
def test_proportional_rounds_down_to_the_floor(sizes: list[int], reduction: float, floor: int) -> None:
    plan = compartments.proportional(sizes, reduction=reduction, floor=floor)
    for size, d in zip(sizes, plan.dims, strict=True):
        assert d == min(size, max(floor, int(size / reduction)))


def test_explicit_and_whole() -> None:
    assert compartments.explicit(10, [(0, 4, 2), (4, 10, 1)]) == Plan((4, 6), (2, 1))
    assert compartments.whole(10, d=3) == Plan((10,), (3,))
    assert repr(compartments.whole(10, d=3)) == "Plan(D=10, d=3, compartments=1)"


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: compartments.whole(10, d=11), "compartment 0 has d = 11, expected 1 <= d <= 10"),
        (lambda: compartments.whole(10, d=0), "d is 0, expected 1 <= d"),
        (lambda: compartments.whole(0, d=1), "the size of compartment 0 is 0"),
        (lambda: compartments.even(10, k=11, d=1), "k is 11"),
        (lambda: compartments.even(10, k=2), "d and total are both given or both missing"),
        (lambda: compartments.even(10, k=2, d=1, total=2), "d and total are both given or both missing"),
        (lambda: compartments.even(10, k=2, d=[1, 2, 3]), "2 sizes and 3 numbers of directions"),
        (lambda: compartments.even(10, k=4, total=3), "a total of 3 directions does not reach 4 compartments"),
        (lambda: compartments.even(10, k=4, total=11), "total is 11"),
        (lambda: compartments.by_layer([], d=1), "0 sizes"),
        (lambda: compartments.by_layer([[3, 0], [0]], d=1), "the size of compartment 1 is 0"),
        (lambda: compartments.proportional([10], reduction=0.5), "reduction is 0.5"),
        (lambda: compartments.proportional([10], reduction=float("nan")), "reduction is nan"),
        (lambda: compartments.explicit(10, [(0, 4, 1), (5, 10, 1)]), "start at 4 and end after that: close the gap"),
        (lambda: compartments.explicit(10, [(0, 4, 1), (3, 10, 1)]), "and end after that: they may not overlap"),
        (lambda: compartments.explicit(10, [(0, 4, 1), (4, 4, 1)]), "end after that: leave it out"),
        (lambda: compartments.explicit(10, [(0, 9, 1)]), "the compartments end at 9, expected D = 10"),
        (lambda: compartments.explicit(10, []), "the compartments end at 0"),
    ],
)
def test_a_plan_that_does_not_fit_is_one_sentence(make: object, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence.replace("(", r"\(")) as caught:
        make()  # type: ignore[operator]
    assert "\n" not in str(caught.value)


def test_numbers_of_the_wrong_type() -> None:
    with pytest.raises(TypeError, match=r"k is 2\.0 of type float, expected an integer"):
        compartments.even(10, k=2.0, d=1)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="the size of tensor 0 of layer 0 is 'a' of type str, expected an integer"):
        compartments.by_layer([("a", 10)], d=1)
    with pytest.raises(TypeError, match="the size of tensor 1 of layer 1 is None of type NoneType"):
        compartments.by_tensor([5, (3, None)], d=1)
    with pytest.raises(TypeError, match="layers is 5 of type int, expected several"):
        compartments.by_layer(5, d=1)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="d is True, expected an integer"):
        compartments.whole(10, d=True)


# Plans by name.


@pytest.mark.parametrize(
    ("sizes", "how", "dims", "expected"),
    [
        ((10, 90), "whole", 8, ((100,), (8,))),
        ((1, 2), "whole", 250, ((3,), (3,))),
        ((63, 9), "whole", "each:5", ((72,), (5,))),
        ((10, 90), "tensor", 20, ((10, 90), (2, 18))),
        ((63, 9), "tensor", "9", ((63, 9), (8, 1))),
        ((2, 90), "tensor", "each:5", ((2, 90), (2, 5))),
        ((10, 1), "even:4", 6, ((3, 3, 3, 2), (2, 2, 1, 1))),
        ((3, 1), "even:1000", 250, ((1, 1, 1, 1), (1, 1, 1, 1))),
        ((1000, 250, 3), "proportional:100", 9, ((1000, 250, 3), (10, 2, 1))),
    ],
)
def test_plans_of_tensors_are_cut_to_what_there_is_room_for(
    sizes: tuple[int, ...], how: str, dims: int | str, expected: tuple[tuple[int, ...], tuple[int, ...]]
) -> None:
    assert plan_of_tensors(sizes, parse_dims(dims), parse_cut(how)) == Plan(*expected)


def test_a_total_that_does_not_reach_every_tensor_is_refused() -> None:
    with pytest.raises(
        ValueError, match="a total of 2 directions does not reach 3 compartments, expected at least one"
    ):
        plan_of_tensors((1, 1, 98), parse_dims(2), parse_cut("tensor"))


@pytest.mark.parametrize("how", ["layer", "tensors", "whole:1", "even", "even:0", "even:2.5", "proportional:0.5", 3])
def test_compartments_that_cannot_be_read(how: object) -> None:
    with pytest.raises(ValueError, match=rf"compartments '{how}' cannot be read, expected whole, tensor, even:K or"):
        parse_cut(how)


@pytest.mark.parametrize("dims", [0, -1, True, 2.5, "", "all", "each:0", "each:x", "1e3"])
def test_dims_that_cannot_be_read(dims: object) -> None:
    with pytest.raises(ValueError, match=rf"dims '{dims}' cannot be read, expected N directions in all"):
        parse_dims(dims)
