//! AWQ: codes of 4 bits in words along the outputs, eight in an order of their own.

use safetensors::Dtype;

use super::PackedError;
use super::gptq::{consecutive, turned};
use super::parts::Parts;
use super::scales::{Tiling, Widening};

/// Codes in a word.
const IN_WORD: usize = 8;

/// Place in a word, by output modulo 8 (AutoAWQ 0.2.9, `awq/utils/packing_utils.py`).
const PLACES: [usize; IN_WORD] = [0, 4, 1, 5, 2, 6, 3, 7];

pub(super) fn read(parts: &Parts<'_>, (outputs, inputs): (usize, usize)) -> Result<Vec<f32>, PackedError> {
    if !outputs.is_multiple_of(IN_WORD) {
        return Err(PackedError::Unsupported {
            what: format!("awq, {outputs} outputs, which are no multiple of {IN_WORD}"),
        });
    }
    let width = outputs / IN_WORD;
    let words = parts.words("qweight", (inputs, width))?;
    let groups = parts.get("scales")?.shape.first().copied().unwrap_or_default();
    parts.shaped("scales", &[groups, outputs], &[Dtype::F16, Dtype::BF16, Dtype::F32])?;
    let (scales, rounding) = parts.floats("scales")?;
    let zero_words = parts.words("qzeros", (groups, width))?;
    let zeros: Vec<f32> = (0..groups * outputs)
        .map(|index| code(&zero_words[index / outputs * width..], index % outputs))
        .collect();
    let tiling = Tiling {
        rows: 1,
        groups: consecutive(parts, (inputs, groups))?,
        columns: groups,
    };
    let widening = Widening {
        tiling: &tiling,
        scales: &turned(&scales, outputs),
        zeros: &turned(&zeros, outputs),
        rounding,
    };
    Ok(widening.values((outputs, inputs), |row, column| code(&words[column * width..], row)))
}

/// The code of an output in the words of an input.
fn code(words: &[u32], output: usize) -> f32 {
    (words[output / IN_WORD] >> (4 * PLACES[output % IN_WORD]) & 15) as f32
}
