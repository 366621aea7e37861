"""EAGLE's evaluation files: JSONL of acceptance per depth (`alpha`), and of answers with their steps.

Formats: SafeAILab/EAGLE, eagle/evaluation/gen_ea_alpha_vicuna.py with eagle/model/utils_alpha.py, and
gen_ea_answer_vicuna.py (commits 08dc06c, 2320d52); Medusa's llm_judge writes the same answers. alpha[i] counts the
steps in which depth i + 1 was accepted, alpha_num[i] those in which it was tried; `idxs` is the index of the LAST step.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import numpy as np

from treeopt.acceptance.importers.reading import SERVED, TREE_UNKNOWN, ImportJob, Reading, Tally
from treeopt.acceptance.importers.reconciling import check_accepted
from treeopt.acceptance.position import MAX_DRAFT_TOKENS
from treeopt.acceptance.profile import Conditions
from treeopt.acceptance.table import DepthRanks
from treeopt.files.documents import Document, Field
from treeopt.files.evidence_lines import SourceFile, count, find_mappings, has, require

_TREE: Final = "right if the run had a chain for --tree-choices: its default is a tree, where any sibling counts"


def read_eagle_alpha(job: ImportJob) -> Reading:
    """Depth-rank counts of the first guess, questions added up (the file has the last turn of each)."""
    right = np.zeros(MAX_DRAFT_TOKENS)
    tried = np.zeros(MAX_DRAFT_TOKENS)
    conditions = Conditions()
    for document in job.file.records():
        for choice in find_mappings(document, "alpha_num"):
            pairs = list(_pairs(choice))
            right[: len(pairs)] += [a for a, _ in pairs]
            tried[: len(pairs)] += [n for _, n in pairs]
            conditions = _conditions(document)
    depth = int(np.count_nonzero(tried))
    require(depth > 0, job.file, "`alpha_num` above 0")
    right, tried = right[:depth], tried[:depth]
    source = job.source(
        DepthRanks.from_counts(reached=tried, counts=right[:, None]),
        tally=Tally(
            draft_tokens=depth,
            drafts=int(tried[0]),
            accepted_tokens=int(right.sum()),
            mean_accepted_length=float(1 + right.sum() / tried[0]),
        ),
        conditions=conditions,
        note=_TREE,
    )
    # In a chain the next depth is tried whenever this one was accepted; in a tree the accepted node may be a leaf.
    fewer = np.flatnonzero(tried[1:] < right[:-1])
    tree = [
        f"depth {d + 2} was tried {tried[d + 1]:.0f} times after {right[d]:.0f} acceptances: a tree was verified, "
        "so the rates are above those of the first guess"
        for d in fewer[:1].tolist()
    ]
    return Reading(sources=(source,), warnings=(*tree, _TREE))


def read_eagle_answers(job: ImportJob) -> Reading:
    """The mean accepted length of the run; mean evidence if it is said to be that of chains of K drafts."""
    steps = tokens = 0
    conditions = Conditions()
    for choice, document in _choices(job.file, "idxs"):
        for last, new in _zipped(choice, "idxs", "new_tokens"):
            if count(new) < count(last) + 1:
                raise new.error(f"{count(new)} new tokens in {count(last) + 1} steps", hint="a step gives one or more")
            steps, tokens = steps + count(last) + 1, tokens + count(new)
        conditions = _conditions(document)
    require(steps > 0, job.file, "`idxs` with `new_tokens`")
    mean = tokens / steps
    return job.mean_reading(
        job.file, mean, None, drafts=steps, accepted=tokens - steps, conditions=conditions, unknown=TREE_UNKNOWN
    )


def _choices(file: SourceFile, key: str) -> Iterator[tuple[Field, Document]]:
    for document in file.records():
        for choice in find_mappings(document, key):
            yield choice, document


def _pairs(choice: Field) -> Iterator[tuple[int, int]]:
    above = None
    for right, tried in _zipped(choice, "alpha", "alpha_num"):
        check_accepted(right, drafted=count(tried), accepted=count(right))
        if above is not None and count(tried) > above:
            raise tried.error(
                f"tried {count(tried)} times, but the depth above was accepted {above} times",
                hint="a depth is tried only after the one above it was accepted",
            )
        above = count(right)
        yield above, count(tried)


def _zipped(choice: Field, first: str, second: str) -> Iterator[tuple[Field, Field]]:
    pair = list(choice.get(first).items()), list(choice.get(second).items())
    if len(pair[0]) != len(pair[1]) or len(pair[0]) > MAX_DRAFT_TOKENS:
        raise choice.error(
            f"{len(pair[0])} values of {first}, {len(pair[1])} of {second}",
            hint=f"expected as many of both, at most {MAX_DRAFT_TOKENS}",
        )
    return zip(*pair, strict=True)


def _conditions(document: Document) -> Conditions:
    if not isinstance(document.value, dict) or not has(document.root, "model_id"):
        return SERVED
    model = document.root.get("model_id").text()
    temperature = re.search(r"temperature-(\d{1,2}(?:\.\d{1,6})?)", model)
    return Conditions(
        drafter=model, temperature=float(temperature[1]) if temperature else None, sampling="draft-starts"
    )
