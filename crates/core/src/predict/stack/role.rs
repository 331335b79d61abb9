//! [`Role`]: what a linear layer does in a decoder layer, by the names that families have for it.

/// A linear layer's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    Query,
    Key,
    Value,
    Output,
    Gate,
    Up,
    Down,
}

/// All roles.
pub const ROLES: [Role; 7] = [
    Role::Query,
    Role::Key,
    Role::Value,
    Role::Output,
    Role::Gate,
    Role::Up,
    Role::Down,
];

impl Role {
    /// The roles that a module name of any family stands for; none where it stands for no linear layer of a decoder layer.
    pub fn of_module(name: &str) -> &'static [Role] {
        let end = name.rsplit('.').next().unwrap_or(name);
        match end {
            "q_proj" | "q" => &[Role::Query],
            "k_proj" | "k" => &[Role::Key],
            "v_proj" | "v" => &[Role::Value],
            "o_proj" | "output_proj" | "out_proj" | "o" | "dense" => &[Role::Output],
            "qkv_proj" | "c_attn" | "query_key_value" | "in_proj_qkv" => &[Role::Query, Role::Key, Role::Value],
            "gate_proj" | "w1" => &[Role::Gate],
            "up_proj" | "w3" | "c_fc" | "fc1" => &[Role::Up],
            "down_proj" | "w2" | "fc2" | "output_linear" => &[Role::Down],
            "gate_up_proj" | "input_linear" => &[Role::Gate, Role::Up],
            "c_proj" => &[Role::Output, Role::Down],
            "mlp" => &[Role::Gate, Role::Up, Role::Down],
            "all-linear" | "all" => &ROLES,
            _ => &[],
        }
    }
}
