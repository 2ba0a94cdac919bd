"""Provide plans that tests of exports and builds share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from remembered_plans import RememberedPlans


@pytest.fixture(scope="session")
def remembered_plans(tmp_path_factory: pytest.TempPathFactory) -> RememberedPlans:
    """Return all plans that this process has built."""
    return RememberedPlans(tmp_path_factory.mktemp("plans"))


@pytest.fixture(scope="module")
def plans_built_once(remembered_plans: RememberedPlans) -> Iterator[None]:
    """Copy plans that this process has already built instead of building them again."""
    name = "skipdec.exporter.building.plan_compiler.build_plan"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(name, remembered_plans.build)
        yield
