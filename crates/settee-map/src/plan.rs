//! A compiled map function: the tree that [`crate::run`] evaluates.
//!
//! Variables have slots, fixed at compile time: no function is entered again before it is left, so each function
//! of the source has its own slots. Strings of the source are ranges of one text, `literals`, in WTF-8.

/// A map function of the subset, compiled. Immutable, so that threads share it.
#[derive(Debug)]
pub struct Plan {
    pub(crate) literals: Vec<u8>,
    /// The map function first, then the functions in it.
    pub(crate) functions: Vec<Function>,
    pub(crate) slot_count: usize,
    /// Number of different names that members are read by.
    pub(crate) name_count: usize,
    pub(crate) summary: Summary,
}

/// What `explain` prints.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Summary {
    pub(crate) emit_count: usize,
    pub(crate) loop_count: usize,
    pub(crate) member_count: usize,
}

impl Plan {
    /// One line for people: that there is a plan, and what it has.
    pub fn explain(&self) -> String {
        let Summary { emit_count, loop_count, member_count } = self.summary;
        let functions = self.functions.len() - 1;
        format!(
            "plan: {emit_count} emit, {member_count} member, {loop_count} loop, {functions} inner function"
        )
    }
}

#[derive(Debug, Default)]
pub(crate) struct Function {
    pub(crate) params: Vec<Slot>,
    /// Variables that are undefined when the function is entered.
    pub(crate) variables: Vec<Slot>,
    pub(crate) body: Vec<Statement>,
}

pub(crate) type Slot = u32;

/// Index in `Plan::functions`.
pub(crate) type FunctionId = u32;

/// A string of the source, and what is known about it as a member's name.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Name {
    pub(crate) start: u32,
    pub(crate) end: u32,
    pub(crate) hash: u32,
    /// Receivers that inherit a member of this name: a mask of `crate::names`.
    pub(crate) inheriting: u8,
    pub(crate) is_length: bool,
    /// Number of the name in the plan: equal names have equal numbers.
    pub(crate) number: u32,
}

#[derive(Debug)]
pub(crate) enum Statement {
    Evaluate(Expression),
    /// A declaration's value.
    Initialise(Slot, Expression),
    /// `let` without a value.
    Reset(Slot),
    Block(Vec<Statement>),
    If(Expression, Box<Statement>, Option<Box<Statement>>),
    For(Box<For>),
    While(Expression, Box<Statement>),
    DoWhile(Box<Statement>, Expression),
    ForIn(Slot, Expression, Box<Statement>),
    ForOf(Slot, Expression, Box<Statement>),
    Switch(Expression, Vec<(Option<Expression>, Vec<Statement>)>),
    Return(Option<Expression>),
    Break,
    Continue,
}

#[derive(Debug)]
pub(crate) struct For {
    pub(crate) init: Vec<Statement>,
    pub(crate) test: Option<Expression>,
    pub(crate) update: Option<Expression>,
    pub(crate) body: Statement,
}

#[derive(Debug)]
pub(crate) enum Expression {
    Undefined,
    Null,
    Bool(bool),
    Number(f64),
    Text(Name),
    Local(Slot),
    Array(Vec<Expression>),
    Object(Vec<(Name, Expression)>),
    /// Texts joined by `String(…)` of values.
    Template(Vec<(Name, Expression)>, Name),
    Member(Box<Expression>, Key, Optional),
    /// An optional chain: a step that isn't taken makes all of it undefined.
    Chain(Box<Expression>),
    Unary(Unary, Box<Expression>),
    Binary(Binary, Box<(Expression, Expression)>),
    Logical(Logical, Box<(Expression, Expression)>),
    Conditional(Box<(Expression, Expression, Expression)>),
    Sequence(Vec<Expression>),
    Assign(Box<Target>, Operation, Box<Expression>),
    /// `++` and `--`: what is added, and whether the value is the one before.
    Update(Box<Target>, f64, bool),
    Delete(Box<Expression>, Box<Key>),
    Emit(Vec<Expression>),
    Call(FunctionId, Vec<Expression>),
    Method(Box<MethodCall>),
    Global(Global, Vec<Expression>),
}

/// Whether `?.` comes before the member.
pub(crate) type Optional = bool;

#[derive(Debug)]
pub(crate) enum Key {
    Name(Name),
    Value(Box<Expression>),
}

#[derive(Debug)]
pub(crate) enum Target {
    Local(Slot),
    /// A member, and whether its name is in brackets.
    Member(Expression, Key, bool),
}

/// What an assignment does with the old value.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Operation {
    Replace,
    Combine(Binary),
    Unless(Logical),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unary {
    Not,
    Minus,
    Plus,
    BitNot,
    Typeof,
    Void,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Binary {
    Equal,
    NotEqual,
    Same,
    NotSame,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    Add,
    Subtract,
    Multiply,
    Divide,
    Remainder,
    ShiftLeft,
    ShiftRight,
    ShiftRightUnsigned,
    BitOr,
    BitXor,
    BitAnd,
    In,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Logical {
    And,
    Or,
    Coalesce,
}

#[derive(Debug)]
pub(crate) struct MethodCall {
    pub(crate) receiver: Expression,
    pub(crate) optional: Optional,
    pub(crate) name: Name,
    pub(crate) method: Method,
    pub(crate) callback: Option<Callback>,
    /// Without the callback.
    pub(crate) arguments: Vec<Expression>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Callback {
    Function(FunctionId),
    Emit,
}

/// Methods that plans call. Each is known for the receivers that `run` names; others are the engine's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Method {
    CharAt,
    CharCodeAt,
    Concat,
    EndsWith,
    Every,
    Filter,
    Find,
    FindIndex,
    ForEach,
    HasOwnProperty,
    Includes,
    IndexOf,
    Join,
    LastIndexOf,
    Map,
    Push,
    Reduce,
    Slice,
    Some,
    Split,
    StartsWith,
    Substr,
    Substring,
    ToString,
    Trim,
}

impl Method {
    /// The method of this name, unless the engine has to run it.
    pub(crate) fn of_name(name: &str) -> Option<Self> {
        Some(match name {
            "charAt" => Self::CharAt,
            "charCodeAt" => Self::CharCodeAt,
            "concat" => Self::Concat,
            "endsWith" => Self::EndsWith,
            "every" => Self::Every,
            "filter" => Self::Filter,
            "find" => Self::Find,
            "findIndex" => Self::FindIndex,
            "forEach" => Self::ForEach,
            "hasOwnProperty" => Self::HasOwnProperty,
            "includes" => Self::Includes,
            "indexOf" => Self::IndexOf,
            "join" => Self::Join,
            "lastIndexOf" => Self::LastIndexOf,
            "map" => Self::Map,
            "push" => Self::Push,
            "reduce" => Self::Reduce,
            "slice" => Self::Slice,
            "some" => Self::Some,
            "split" => Self::Split,
            "startsWith" => Self::StartsWith,
            "substr" => Self::Substr,
            "substring" => Self::Substring,
            "toString" => Self::ToString,
            "trim" => Self::Trim,
            _ => return None,
        })
    }

    /// Whether the first argument is a function.
    pub(crate) fn takes_function(self) -> bool {
        matches!(
            self,
            Self::Every
                | Self::Filter
                | Self::Find
                | Self::FindIndex
                | Self::ForEach
                | Self::Map
                | Self::Reduce
                | Self::Some
        )
    }
}

/// Functions that plans call by a global name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Global {
    IsArray,
    Keys,
    Values,
    Entries,
    Number,
    Text,
    Boolean,
    /// `Object.prototype.hasOwnProperty.call(object, name)`.
    HasOwn,
    Abs,
    Ceil,
    Floor,
    Max,
    Min,
    Round,
    Trunc,
}
