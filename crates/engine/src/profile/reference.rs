//! A throughput from elsewhere, such as a paper's, as a part of this device's peak.

use serde::Serialize;

use super::Profile;

/// How a reference compares with what was measured.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Reference {
    /// Tokens per second of the reference.
    pub tokens_per_s: f64,
    /// Ratio of the measured value to the reference.
    pub reached: f64,
    /// MFU that the reference would have on this device, from the FLOPs that a token takes here; `None` where these, or
    /// the device's peak, are not known.
    pub mfu: Option<f64>,
}

impl Reference {
    /// `tokens_per_s` against `profile`.
    pub fn new(profile: &Profile, tokens_per_s: f64) -> Self {
        let per_token = |flops: f64| flops / profile.steps.tokens_per_step.max(1.0);
        let arithmetic = &profile.arithmetic;
        let known = arithmetic.model_flops.zip(arithmetic.peak_flops_per_s);
        Self {
            tokens_per_s,
            reached: profile.steps.tokens_per_s / tokens_per_s,
            mfu: known.map(|(flops, peak)| tokens_per_s * per_token(flops) / peak),
        }
    }

    /// Whether the reference asks for more than this device's peak: it was measured on a faster one, or counts other
    /// tokens.
    pub fn is_beyond_the_peak(&self) -> bool {
        self.mfu.is_some_and(|mfu| mfu > 1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::Arithmetic;
    use crate::profile::fixtures::sound_profile;

    #[test]
    fn a_reference_becomes_a_utilisation() {
        let mut profile = sound_profile();
        profile.arithmetic = Arithmetic {
            model_flops: Some(6e11),
            peak_flops_per_s: Some(1e13),
            ..Arithmetic::default()
        };
        // 6e8 FLOPs for a token.
        let reference = Reference::new(&profile, 12_500.0);
        assert!((reference.mfu.unwrap() - 0.75).abs() < 1e-12);
        assert!((reference.reached - 0.8).abs() < 1e-12);
        assert!(Reference::new(&profile, 20_000.0).is_beyond_the_peak());
    }
}
