//! Rotary position embeddings: the angles of each family.
//!
//! Pair i of a head turns by position·f_i with f_i = base^(-2i / n), n being the rotated dimensions; the scalings
//! change f_i for long contexts. The arithmetic is F32 where transformers does it in F32, since a position of 10,000
//! turns a relative error of 1e-7 into an angle's error of 1e-3.
//!
//! Sources: RoFormer (arXiv:2104.09864), YaRN (arXiv:2309.00071), LongRoPE (arXiv:2402.13753), the Llama 3.1 model card.

use serde::Serialize;

/// One position encoding.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// Base of the frequencies (`rope_theta`).
    pub base: f64,
    /// n, dimensions of a head that are rotated; even, at most the head's width.
    pub rotary_dims: usize,
    /// Dimensions of a query's head before them, in latent attention, whose rotated keys come by themselves.
    pub plain_dims: usize,
    pub order: RopeOrder,
    pub scaling: RopeScaling,
    /// Growth of queries with their position.
    pub query_growth: Option<QueryGrowth>,
}

/// Pairs of dimensions of a head that turn together, among the n that are rotated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RopeOrder {
    /// i and i + n/2.
    Halves,
    /// 2i and 2i + 1.
    Neighbours,
}

/// Queries times 1 + beta ln(1 + floor((position + from) / original_max_positions)) (Llama 4, Ministral 3).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QueryGrowth {
    pub beta: f64,
    pub original_max_positions: usize,
    /// Number of the first position.
    pub from: usize,
}

impl QueryGrowth {
    /// The factor at `position`.
    pub fn factor(&self, position: usize) -> f64 {
        1.0 + self.beta * (1.0 + ((position + self.from) / self.original_max_positions) as f64).ln()
    }
}

/// How frequencies are changed for contexts longer than those the model was first trained on.
#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    None,
    /// Absence of rotation: a layer whose queries grow and do not turn.
    Still,
    /// All frequencies divided by `factor`.
    Linear {
        factor: f64,
    },
    /// Low frequencies divided by `factor`, high ones kept, a ramp between (Llama 3.1).
    Llama3 {
        factor: f64,
        low_freq_factor: f64,
        high_freq_factor: f64,
        original_max_positions: usize,
    },
    /// A ramp by number of rotations, and a factor on cos and sin.
    Yarn {
        factor: f64,
        beta_fast: f64,
        beta_slow: f64,
        original_max_positions: usize,
        attention_factor: f64,
        /// Whether the ramp's ends are rounded to whole dimensions.
        truncate: bool,
    },
    /// Angles of the whole head divided by `factor`, and of its pairs only the first `turning` turn (Gemma 4).
    Proportional {
        turning: usize,
        factor: f64,
    },
    /// One divisor for each frequency; another set once a sequence is longer than the original context.
    LongRope {
        short_factor: Vec<f64>,
        long_factor: Vec<f64>,
        original_max_positions: usize,
        attention_factor: f64,
    },
}

impl Rope {
    /// Tables of cosines and sines: one for queries and keys, or one for each.
    pub fn tables(&self) -> usize {
        1 + usize::from(self.query_growth.is_some())
    }

    /// Frequencies f_i in radians per position, (rotary_dims / 2,), for sequences of up to `longest` tokens.
    pub fn frequencies(&self, longest: usize) -> Vec<f32> {
        let plain = self.plain_frequencies();
        match &self.scaling {
            RopeScaling::None => plain,
            RopeScaling::Still => vec![0.0; plain.len()],
            RopeScaling::Linear { factor } => plain.iter().map(|f| f / *factor as f32).collect(),
            RopeScaling::Llama3 { .. } => plain.iter().map(|f| self.llama3(*f)).collect(),
            RopeScaling::Yarn { .. } => self.yarn(&plain),
            RopeScaling::Proportional { turning, factor } => {
                let of_pair = |(pair, f): (usize, &f32)| if pair < *turning { f / *factor as f32 } else { 0.0 };
                plain.iter().enumerate().map(of_pair).collect()
            }
            RopeScaling::LongRope {
                short_factor,
                long_factor,
                original_max_positions,
                ..
            } => {
                let long = longest > *original_max_positions;
                let divisors = if long { long_factor } else { short_factor };
                let powers = plain.iter().map(|f| 1.0 / f);
                let scaled = divisors.iter().zip(powers);
                scaled.map(|(divisor, power)| 1.0 / (*divisor as f32 * power)).collect()
            }
        }
    }

    /// Factor on cos and sin.
    pub fn amplitude(&self) -> f32 {
        match self.scaling {
            RopeScaling::Yarn { attention_factor, .. } | RopeScaling::LongRope { attention_factor, .. } => {
                attention_factor as f32
            }
            _ => 1.0,
        }
    }

    /// Whether sequences of `a` and of `b` tokens share their frequencies.
    pub fn same_frequencies(&self, a: usize, b: usize) -> bool {
        match self.scaling {
            RopeScaling::LongRope {
                original_max_positions, ..
            } => (a > original_max_positions) == (b > original_max_positions),
            _ => true,
        }
    }

    fn plain_frequencies(&self) -> Vec<f32> {
        let exponent = |pair: usize| (2 * pair) as f32 / self.rotary_dims as f32;
        (0..self.rotary_dims / 2)
            .map(|pair| 1.0 / (self.base as f32).powf(exponent(pair)))
            .collect()
    }

    fn llama3(&self, frequency: f32) -> f32 {
        let RopeScaling::Llama3 {
            factor,
            low_freq_factor,
            high_freq_factor,
            original_max_positions,
        } = self.scaling
        else {
            return frequency;
        };
        let original = original_max_positions as f64;
        let wavelength = std::f32::consts::TAU / frequency;
        if wavelength > (original / low_freq_factor) as f32 {
            return frequency / factor as f32;
        }
        if wavelength < (original / high_freq_factor) as f32 {
            return frequency;
        }
        if high_freq_factor == low_freq_factor {
            return frequency;
        }
        let smooth =
            (original as f32 / wavelength - low_freq_factor as f32) / (high_freq_factor - low_freq_factor) as f32;
        (1.0 - smooth) * frequency / factor as f32 + smooth * frequency
    }

    fn yarn(&self, plain: &[f32]) -> Vec<f32> {
        let RopeScaling::Yarn {
            factor,
            beta_fast,
            beta_slow,
            original_max_positions,
            truncate,
            ..
        } = self.scaling
        else {
            return plain.to_vec();
        };
        // The dimension whose wave turns `rotations` times over the original context.
        let dimension = |rotations: f64| {
            let turns = original_max_positions as f64 / (rotations * std::f64::consts::TAU);
            self.rotary_dims as f64 * turns.ln() / (2.0 * self.base.ln())
        };
        let (mut low, mut high) = (dimension(beta_fast), dimension(beta_slow));
        if truncate {
            (low, high) = (low.floor(), high.ceil());
        }
        low = low.max(0.0);
        high = high.min(self.rotary_dims as f64 - 1.0);
        if low == high {
            high += 0.001;
        }
        let blend = |(pair, frequency): (usize, &f32)| {
            let ramp = (((pair as f64 - low) / (high - low)).clamp(0.0, 1.0)) as f32;
            (frequency / factor as f32) * ramp + frequency * (1.0 - ramp)
        };
        plain.iter().enumerate().map(blend).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rope(scaling: RopeScaling) -> Rope {
        Rope {
            base: 10_000.0,
            rotary_dims: 8,
            plain_dims: 0,
            order: RopeOrder::Halves,
            scaling,
            query_growth: None,
        }
    }

    #[test]
    fn frequencies_fall_from_one() {
        let frequencies = rope(RopeScaling::None).frequencies(16);
        for (got, expected) in frequencies.iter().zip([1.0, 0.1, 0.01, 0.001]) {
            assert!((got / expected - 1.0f32).abs() < 1e-6);
        }
    }

    #[test]
    fn llama3_keeps_fast_waves_and_slows_slow_ones() {
        let scaled = rope(RopeScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_max_positions: 64,
        })
        .frequencies(16);
        let plain = rope(RopeScaling::None).frequencies(16);
        assert_eq!(scaled[0], plain[0]);
        assert_eq!(scaled[3], plain[3] / 8.0);
    }

    #[test]
    fn longrope_changes_once_past_the_original_context() {
        let rope = rope(RopeScaling::LongRope {
            short_factor: vec![1.0; 4],
            long_factor: vec![2.0; 4],
            original_max_positions: 16,
            attention_factor: 1.2,
        });
        assert_eq!(rope.frequencies(17)[0], rope.frequencies(16)[0] / 2.0);
        assert!(rope.same_frequencies(3, 16) && !rope.same_frequencies(16, 17));
        assert_eq!(rope.amplitude(), 1.2);
    }

    #[test]
    fn yarn_blends_between_plain_and_slowed_waves() {
        let scaled = rope(RopeScaling::Yarn {
            factor: 4.0,
            beta_fast: 32.0,
            beta_slow: 1.0,
            original_max_positions: 1024,
            attention_factor: 1.1,
            truncate: true,
        })
        .frequencies(16);
        let plain = rope(RopeScaling::None).frequencies(16);
        assert_eq!(scaled[0], plain[0]);
        assert!(scaled[3] < plain[3] && scaled[3] >= plain[3] / 4.0);
    }
}
