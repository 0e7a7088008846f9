"""Presets on public benchmarks, whose files a lab puts into MPT_DATA_DIR/text: minimal pairs of
English sentences (BLiMP) and measured effects of mutations (ProteinGym)."""

from mptcore.presets import language_judges as judges
from mptcore.presets.judges import SEEDS
from mptcore.presets.preset import Preset
from mptcore.specs import MaskedLmExperiment

ASSAYS = {
    "BLAT_ECOLX_Stiffler_2015": (
        "MSIQHFRVALIPFFAAFCLPVFAHPETLVKVKDAEDQLGARVGYIELDLNSGKILESFRPEERFPMMSTFKVLLCGAVLSRVDAGQEQLG"
        "RRIHYSQNDLVEYSPVTEKHLTDGMTVRELCSAAITMSDNTAANLLLTTIGGPKELTAFLHNMGDHVTRLDRWEPELNEAIPNDERDTTM"
        "PAAMATTLRKLLTGELLTLASRQQLIDWMEADKVAGPLLRSALPAGWFIADKSGAGERGSRGIIAALGPDGKPSRIVVIYTTGSQATMDE"
        "RNRQIAEIGASLIKHW",
        0.557,
    ),
    "RASH_HUMAN_Bandaru_2017": (
        "MTEYKLVVVGAGGVGKSALTIQLIQNHFVDEYDPTIEDSYRKQVVIDGETCLLDILDTAGQEEYSAMRDQYMRTGEGFLCVFAINNTKSF"
        "EDIHQYREQIKRVKDSDDVPMVLVGNKCDLAARTVESRQAQDLARSYGIPYIETSAKTRQGVEDAFYTLVREIRQHKLRKLNPPDESGPG"
        "CMSCKCVLS",
        0.514,
    ),
    "SUMO1_HUMAN_Weile_2017": (
        "MSDQEAKPSTEDLGDKKEGEYIKLKVIGQDSSEIHFKVKMTTHLKKLKESYCQRQGVPMNSLRFLFEGQRIADNHTPKELGMEEEDVIEV"
        "YQEQTGGHSTV",
        0.496,
    ),
    "DYR_ECOLI_Thompson_2019": (
        "MISLIAALAVDRVIGMENAMPWNLPADLAWFKRNTLNKPVIMGRHTWESIGRPLPGRKNIILSSQPGTDDRVTWVKSVDEAIAACGDVPE"
        "IMVIGGGRVYEQFLPKAQKLYLTHIDAEVEGDTHFPDYEPDDWESVFSEFHDADAQNSHSYCFEILERR",
        0.349,
    ),
    "AACC1_PSEAI_Dandage_2018": (
        "MLRSSNDVTQQGSRPKTKLGGSSMGIIRTCRLGPDQVKSMRAALDLFGREFGDVATYSQHQPDSDYLGNLLRSKTFIALAAFDQEAVVGA"
        "LAAYVLPKFEQPRSEIYIYDLAVSGEHRRQGIATALINLLKHEANALGAYVIYVQADYGDDPAVALYTKLGIREEVMHFDIDPSTAT",
        0.248,
    ),
}
"""Wild types of five assays of ProteinGym, all of single mutations, and the rank correlations that
it reports for masked marginals by ESM-2 with 35 million parameters (its table
DMS_substitutions_Spearman_DMS_level.csv, 3 digits)."""


BLIMP = Preset(
    "blimp",
    "BLiMP: 67,000 minimal pairs of English sentences, by RoBERTa large",
    "The pseudo-log-likelihood prefers the acceptable sentence in 86.5 % of the pairs (Salazar et "
    "al. 2020).",
    (
        MaskedLmExperiment.model_validate(
            {
                "model": {"family": "masked_lm", "checkpoint": "roberta-large"},
                "data": {
                    "source": "text",
                    "file": "blimp.jsonl",
                    "column": "sentence_good",
                    "second_column": "sentence_bad",
                },
                "evaluate": {
                    "texts": {"scores": ["pll"], "group_size": 2, "category_column": "UID"}
                },
                "seeds": [SEEDS[0]],
                "compute": {"max_runtime_s": 7 * 24 * 3600},
            }
        ),
    ),
    {"accuracy": (0.865,), "margin": (0.01,)},
    judges.blimp,
)
PROTEIN_GYM = Preset(
    "proteingym",
    "ProteinGym: measured effects of mutations of five proteins, by ESM-2 with 35 M parameters",
    "Masked marginals rank the mutations of each protein as ProteinGym reports (rank correlations "
    "0.557, 0.514, 0.496, 0.349, 0.248).",
    tuple(
        MaskedLmExperiment.model_validate(
            {
                "model": {"family": "masked_lm", "checkpoint": "facebook/esm2_t12_35M_UR50D"},
                "data": {"source": "text", "file": f"{assay}.csv", "column": "mutant"},
                "evaluate": {
                    "texts": {
                        "scores": ["masked_marginal"],
                        "wild_type": wild_type,
                        "label_column": "DMS_score",
                    }
                },
                "seeds": [SEEDS[0]],
            }
        )
        for assay, (wild_type, _) in ASSAYS.items()
    ),
    {**{assay: (found,) for assay, (_, found) in ASSAYS.items()}, "margin": (0.01,)},
    judges.mutations,
)
