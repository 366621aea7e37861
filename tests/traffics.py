"""A path model as traffic that was counted: f is the same wherever drafts start."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from treeopt.acceptance.dynamic_tree import ValuedModel
from treeopt.acceptance.model import PathModel
from treeopt.acceptance.traffic import Part, Traffic


class _Valued(Traffic):
    def valued_under(self, draft: object) -> ValuedModel:
        model: Any = self.parts[0].profile.model()
        return model if isinstance(model, ValuedModel) else super().valued_under(draft)

    def tokens(self, draft: Any) -> float:
        model: Any = self.parts[0].profile.model()
        if isinstance(model, ValuedModel) and not hasattr(draft, "paths"):
            return float(model.values.tokens(draft.num_steps, draft.topk)[draft.num_draft_tokens])
        return super().tokens(draft)

    def tree_of(self, draft: Any) -> Any:
        model: Any = self.parts[0].profile.model()
        from treeopt.solve.candidates_by_family import tree_of

        return tree_of(draft, model)


def traffic_of(model: PathModel) -> Traffic:
    """Traffic whose f is the model's; of a `ValuedModel`, dynamic trees have its values."""
    profile: Any = SimpleNamespace(model=lambda: model, evidence=None, sha256="0" * 64, name="model")
    return _Valued(parts=(Part(name="model", weight=1.0, profile=profile),))
