//! The sources of the kernels.

/// A `.cu` file without its beginning, which all share.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct Source {
    /// Name for messages and files.
    pub name: &'static str,
    /// The text of the file.
    pub text: &'static str,
    /// The headers that it includes.
    pub headers: &'static [Header],
}

/// A `.cuh` file.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct Header {
    /// Name by which files include it.
    pub name: &'static str,
    /// The text of the file.
    pub text: &'static str,
}

/// Text that every file begins with.
#[cfg(any(feature = "cuda", feature = "emulator", test))]
pub(super) const PRELUDE: &str = include_str!("prelude.cuh");

/// Operands of the products of one warp.
pub const OPERANDS: Header = Header {
    name: "operands.cuh",
    text: include_str!("operands.cuh"),
};

/// Groups of rows, such as those of experts.
pub const GROUPS: Header = Header {
    name: "groups.cuh",
    text: include_str!("groups.cuh"),
};

/// Rows of values as signed bytes.
pub const BYTES: Header = Header {
    name: "bytes.cuh",
    text: include_str!("bytes.cuh"),
};

/// Products of four warps, which only Hopper has.
pub const WARPGROUP: Header = Header {
    name: "warpgroup.cuh",
    text: include_str!("warpgroup.cuh"),
};

/// A block whose warps divide copies and products among them.
pub const STAGES: Header = Header {
    name: "stages.cuh",
    text: include_str!("stages.cuh"),
};

/// The file `name.cu` beside the caller, with the headers that it includes.
macro_rules! source {
    ($name:literal $(, $header:expr)*) => {
        Source {
            name: $name,
            text: include_str!(concat!($name, ".cu")),
            headers: &[$($header),*],
        }
    };
}
pub(crate) use source;

impl Source {
    /// The text that NVRTC compiles.
    #[cfg(feature = "cuda")]
    pub(super) fn whole(&self) -> String {
        format!("{PRELUDE}\n#line 1 \"{}.cu\"\n{}", self.name, self.text)
    }
}
