//! PyTorch's random numbers on a CPU with AVX2, to the last bit: what `torch.randn` and `uniform_` give for F32 tensors
//! of 16 elements or more.
//!
//! | | |
//! |---|---|
//! | word | 32 bits of MT19937; its lowest 24, times 2^-24, are a uniform number in [0, 1) |
//! | normal numbers | of u from 8 words and v from the next 8: sqrt(-2 ln(1 - u)) cos 2 pi v, then as many with sin |
//! | a rest below 16 | the last 16 numbers are drawn once more |
//!
//! Logarithm, sine and cosine are Cephes' polynomials in F32. PyTorch's compiler fuses products with sums in them:
//! `mul_add` stands exactly where that matters. `tests/golden/seeded.py` has the same in numpy.

/// Coefficients of ln(1 + x) behind x - x^2 / 2, highest power first.
const LOG: [f32; 9] = [
    7.0376836292e-2,
    -1.1514610310e-1,
    1.1676998740e-1,
    -1.2420140846e-1,
    1.4249322787e-1,
    -1.6668057665e-1,
    2.0000714765e-1,
    -2.4999993993e-1,
    3.3333331174e-1,
];

/// Coefficients of cos x behind 1 - x^2 / 2 in powers of x^2, highest first.
const COS: [f32; 3] = [2.443315711809948e-5, -1.388731625493765e-3, 4.166664568298827e-2];

/// Coefficients of sin x behind x in powers of x^2, highest first.
const SIN: [f32; 3] = [-1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1];

/// ln 2 as a number of few bits and a rest.
const LN_2: [f32; 2] = [0.693359375, -2.12194440e-4];

/// -pi / 4 as two numbers of few bits and a rest.
const MINUS_QUARTER_PI: [f32; 3] = [-0.78515625, -2.4187564849853515625e-4, -3.77489497744594108e-8];

/// Numbers of a block.
const BLOCK: usize = 16;

/// Words from a seed on, which grow as they are asked for.
pub(crate) struct TorchRandom {
    generator: Twister,
    uniform: Vec<f32>,
}

impl TorchRandom {
    pub(crate) fn new(seed: u32) -> Self {
        Self {
            generator: Twister::new(seed),
            uniform: Vec::new(),
        }
    }

    /// Normal numbers as `torch.randn` draws `count` of them from word `at` on.
    pub(crate) fn normal(&mut self, at: usize, count: usize) -> Vec<f32> {
        assert!(count >= BLOCK, "PyTorch draws fewer than 16 numbers in another way");
        let words = self.uniform(at, count + BLOCK);
        let mut values = vec![0.0; count];
        for start in (0..=count - BLOCK).step_by(BLOCK) {
            fill_block(&words[start..start + BLOCK], &mut values[start..start + BLOCK]);
        }
        if !count.is_multiple_of(BLOCK) {
            fill_block(&words[count..], &mut values[count - BLOCK..]);
        }
        values
    }

    /// Numbers in [0, 1), `count` from word `at` on.
    pub(crate) fn uniform(&mut self, at: usize, count: usize) -> &[f32] {
        while self.uniform.len() < at + count {
            let word = self.generator.next_word();
            self.uniform.push((word & 0xff_ffff) as f32 / 16_777_216.0);
        }
        &self.uniform[at..at + count]
    }
}

/// Sixteen normal numbers from as many uniform ones.
fn fill_block(words: &[f32], values: &mut [f32]) {
    for index in 0..BLOCK / 2 {
        let radius = (-2.0 * logarithm(1.0 - words[index])).sqrt();
        let (sin, cos) = sine_and_cosine(std::f32::consts::TAU * words[index + BLOCK / 2]);
        // A zero has no sign.
        values[index] = radius * cos + 0.0;
        values[index + BLOCK / 2] = radius * sin + 0.0;
    }
}

fn polynomial(x: f32, coefficients: &[f32]) -> f32 {
    let mut value = coefficients[0];
    for coefficient in &coefficients[1..] {
        value = value.mul_add(x, *coefficient);
    }
    value
}

/// ln of a positive number.
fn logarithm(number: f32) -> f32 {
    let bits = number.to_bits();
    let mut exponent = ((bits >> 23) as i32 - 126) as f32;
    let mantissa = f32::from_bits((bits & 0x007f_ffff) | 0x3f00_0000);
    let mut x = mantissa - 1.0;
    if mantissa < std::f32::consts::FRAC_1_SQRT_2 {
        exponent -= 1.0;
        x += mantissa;
    }
    let square = x * x;
    let rest = (polynomial(x, &LOG) * x).mul_add(square, exponent * LN_2[1]) - square * 0.5;
    (x + rest) + exponent * LN_2[0]
}

/// Sine and cosine of an angle in [0, 2 pi).
fn sine_and_cosine(angle: f32) -> (f32, f32) {
    const FOUR_BY_PI: f32 = 4.0 * std::f32::consts::FRAC_1_PI;
    let octant = ((angle * FOUR_BY_PI) as i32 + 1) & !1;
    let x = MINUS_QUARTER_PI
        .iter()
        .fold(angle, |x, part| (octant as f32).mul_add(*part, x));
    let square = x * x;
    let cos = (polynomial(square, &COS) * square).mul_add(square, -(square * 0.5)) + 1.0;
    let sin = (polynomial(square, &SIN) * square).mul_add(x, x);
    let (first, second) = if octant & 2 == 0 { (sin, cos) } else { (cos, sin) };
    let signed = |negative: bool, value: f32| if negative { -value } else { value };
    (signed(octant & 4 != 0, first), signed((octant - 2) & 4 == 0, second))
}

/// MT19937 of Matsumoto and Nishimura (1998).
struct Twister {
    state: [u32; Self::SIZE],
    next: usize,
}

impl Twister {
    const SIZE: usize = 624;
    const SHIFT: usize = 397;

    fn new(seed: u32) -> Self {
        let mut state = [seed; Self::SIZE];
        for index in 1..Self::SIZE {
            let before = state[index - 1];
            state[index] = (before ^ (before >> 30))
                .wrapping_mul(1_812_433_253)
                .wrapping_add(index as u32);
        }
        Self {
            state,
            next: Self::SIZE,
        }
    }

    fn next_word(&mut self) -> u32 {
        if self.next == Self::SIZE {
            self.twist();
        }
        let mut word = self.state[self.next];
        self.next += 1;
        word ^= word >> 11;
        word ^= (word << 7) & 0x9d2c_5680;
        word ^= (word << 15) & 0xefc6_0000;
        word ^ (word >> 18)
    }

    fn twist(&mut self) {
        for index in 0..Self::SIZE {
            let joined = (self.state[index] & 0x8000_0000) | (self.state[(index + 1) % Self::SIZE] & 0x7fff_ffff);
            let odd = if joined & 1 == 1 { 0x9908_b0df } else { 0 };
            self.state[index] = self.state[(index + Self::SHIFT) % Self::SIZE] ^ (joined >> 1) ^ odd;
        }
        self.next = 0;
    }
}
