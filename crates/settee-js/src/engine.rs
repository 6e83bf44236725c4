//! One QuickJS engine: a runtime, the realm of `loop.js`, and a realm per design function.
//!
//! The engine has no I/O, no modules, no `std` and no `os`: only the built-ins that CouchDB's QuickJS has.
//!
//! Invariants:
//! 1. Every call into the engine has ticks; an endless loop ends.
//! 2. After [`Engine::align`], the ticks that a function uses depend only on it and its arguments.
//! 3. After [`Failure::Memory`] or [`Failure::Other`] the owner replaces the engine.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rquickjs::context::EvalOptions;
use rquickjs::context::intrinsic;
use rquickjs::function::{Args, Func, IntoArgs};
use rquickjs::{Context, Ctx, FromJs, Function, Object, Persistent, Runtime, Value};

use crate::error::{CompileError, Error, Stop};
use crate::limits::{FUNCTION_COUNT_MAX, Limits, MEMORY_BYTES_MIN};

/// The built-ins beside the language's basic objects: those of CouchDB's QuickJS.
/// And promises, without which the engine leaks objects when an asynchronous function is called.
type Builtins = (
    intrinsic::Date,
    intrinsic::Eval,
    intrinsic::RegExp,
    intrinsic::Json,
    intrinsic::MapSet,
    intrinsic::Promise,
);

/// Ticks for entry points that run no design function. Each handles one batch.
const TICKS_INTERNAL: u64 = 1 << 20;

/// Garbage between two collections of cycles. All else is freed by counting references.
const GARBAGE_BYTES_MAX: usize = 8 << 20;

/// Times the memory limit, for the run that shows whether a function throws null itself.
const MEMORY_FACTOR_NULL: usize = 2;

/// What a realm's function is for; it decides the realm's globals.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Map,
    Reduce,
    Design,
}

impl Role {
    fn name(self) -> &'static str {
        match self {
            Role::Map => "map",
            Role::Reduce => "reduce",
            Role::Design => "design",
        }
    }
}

/// Why a call into the engine ended without a value.
#[derive(Debug)]
pub(crate) enum Failure {
    /// All ticks were used.
    Ticks,
    /// All memory was used.
    Memory,
    /// `loop.js` or the binding failed.
    Other(String),
}

impl Failure {
    pub(crate) fn into_error(self, limits: &Limits) -> Error {
        match self {
            Failure::Ticks => Stop::Ticks { limit: limits.ticks }.into(),
            Failure::Memory => Stop::Memory { limit: limits.memory_bytes }.into(),
            Failure::Other(message) => Error::Engine(message),
        }
    }
}

/// Counts down the ticks of the present call. Shared with the interrupt handler.
#[derive(Debug, Default)]
struct Meter {
    left: AtomicU64,
}

impl Meter {
    /// Uses a tick. Returns whether to interrupt.
    fn tick(&self) -> bool {
        let left = self.left.load(Ordering::Relaxed);
        self.left.store(left.saturating_sub(1), Ordering::Relaxed);
        left <= 1
    }

    /// Uses several ticks. Returns whether none is left but the one at which the engine is interrupted.
    fn use_ticks(&self, ticks: f64) -> bool {
        let left = self.left.load(Ordering::Relaxed);
        // The cast saturates.
        let rest = left.saturating_sub(ticks as u64);
        self.left.store(rest.max(left.min(1)), Ordering::Relaxed);
        rest <= 1
    }

    fn is_empty(&self) -> bool {
        self.left() == 0
    }

    fn left(&self) -> u64 {
        self.left.load(Ordering::Relaxed)
    }

    fn set(&self, ticks: u64) {
        self.left.store(ticks, Ordering::Relaxed);
    }
}

pub(crate) struct Engine {
    // Contexts are dropped before the runtime.
    realms: Vec<Context>,
    main: Context,
    runtime: Runtime,
    meter: Arc<Meter>,
    limits: Limits,
}

impl Engine {
    /// Creates an engine without functions.
    pub(crate) fn new(limits: &Limits) -> Result<Engine, Error> {
        let engine = |e: rquickjs::Error| Error::Engine(e.to_string());
        let runtime = Runtime::new().map_err(engine)?;
        let meter = Arc::new(Meter::default());
        meter.set(TICKS_INTERNAL);
        let counted = Arc::clone(&meter);
        runtime.set_interrupt_handler(Some(Box::new(move || counted.tick())));
        runtime.set_max_stack_size(limits.stack_bytes);
        runtime.set_gc_threshold(GARBAGE_BYTES_MAX);
        let main = Context::custom::<Builtins>(&runtime).map_err(engine)?;
        let renewed = Arc::clone(&meter);
        let charged = Arc::clone(&meter);
        let ticks = limits.ticks;
        main.with(|ctx| -> rquickjs::Result<()> {
            let script = |name: &str, source: &str| {
                let mut options = EvalOptions::default();
                options.filename = Some(name.to_owned());
                ctx.eval_with_options::<Function, _>(source, options)
            };
            let builtins: Object = script("builtins.js", include_str!("builtins.js"))?
                .call((Func::from(move |ticks: f64| charged.use_ticks(ticks)),))?;
            let start = script("loop.js", include_str!("loop.js"))?;
            // An empty meter stays empty: the interrupt must reach the caller.
            let renew = Func::from(move || {
                if !renewed.is_empty() {
                    renewed.set(ticks);
                }
            });
            let entry_points: Object = start.call((renew, builtins))?;
            let define: Function =
                ctx.eval("(value) => Object.defineProperty(globalThis, 'settee', { value })")?;
            define.call((entry_points,))
        })
        .map_err(engine)?;
        let engine = Engine { realms: Vec::new(), main, runtime, meter, limits: *limits };
        engine.limit_memory();
        Ok(engine)
    }

    fn limit_memory(&self) {
        self.runtime.set_memory_limit(self.memory_bytes());
    }

    fn memory_bytes(&self) -> usize {
        self.limits.memory_bytes.max(MEMORY_BYTES_MIN)
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Adds a realm and compiles `source` in it. Returns the function's index.
    pub(crate) fn add_function(
        &mut self,
        role: Role,
        library: Option<&str>,
        source: &str,
    ) -> Result<usize, Error> {
        if source.trim().is_empty() {
            return Err(CompileError::Empty.into());
        }
        let index = self.add_realm(role, library)?;
        let source_text = || source.to_owned();
        let start = Start::of(source).name();
        let answer: String = match self.call(self.limits.ticks, "addFunction", (source, start)) {
            Ok(answer) => answer,
            Err(Failure::Other(message)) => return Err(Error::Engine(message)),
            Err(failure) => {
                let stop = match failure {
                    Failure::Memory => Stop::Memory { limit: self.limits.memory_bytes },
                    _ => Stop::Ticks { limit: self.limits.ticks },
                };
                return Err(CompileError::Stopped { stop, source_text: source_text() }.into());
            }
        };
        let answer: Vec<String> = serde_json::from_str(&answer).map_err(|e| Error::Engine(e.to_string()))?;
        match answer.first().map(String::as_str) {
            Some("ok") => Ok(index),
            Some("not_function") => Err(CompileError::NotFunction { source_text: source_text() }.into()),
            Some("memory") => {
                let stop = Stop::Memory { limit: self.limits.memory_bytes };
                Err(CompileError::Stopped { stop, source_text: source_text() }.into())
            }
            _ => {
                let message = answer.get(1).cloned().unwrap_or_default();
                Err(CompileError::Rejected { message, source_text: source_text() }.into())
            }
        }
    }

    fn add_realm(&mut self, role: Role, library: Option<&str>) -> Result<usize, Error> {
        if self.realms.len() >= FUNCTION_COUNT_MAX {
            return Err(Error::FunctionCount { count: self.realms.len() + 1 });
        }
        // The binding does not check whether a built-in could be allocated.
        self.runtime.set_memory_limit(0);
        let realm = Context::custom::<Builtins>(&self.runtime);
        self.limit_memory();
        let realm = realm.map_err(|e| Error::Engine(e.to_string()))?;
        let global = realm.with(|ctx| Persistent::save(&ctx, ctx.globals()));
        self.meter.set(TICKS_INTERNAL);
        let library = library.map(str::as_bytes).unwrap_or(b"null");
        let index: Result<u32, Failure> = self.with(|ctx, entry_points| {
            let global = global.restore(ctx)?;
            let library = ctx.json_parse(library)?;
            entry_points.get::<_, Function>("addRealm")?.call((global, role.name(), library))
        });
        self.realms.push(realm);
        Ok(index.map_err(|f| f.into_error(&self.limits))? as usize)
    }

    /// Calls an entry point of `loop.js` with `ticks`.
    pub(crate) fn call<A, R>(&self, ticks: u64, entry_point: &str, arguments: A) -> Result<R, Failure>
    where
        A: for<'js> IntoArgs<'js>,
        R: for<'js> FromJs<'js>,
    {
        self.meter.set(ticks);
        self.with(|ctx, entry_points| {
            let _ = ctx;
            entry_points.get::<_, Function>(entry_point)?.call(arguments)
        })
    }

    /// Calls an entry point that runs no design function.
    pub(crate) fn call_internal<A, R>(&self, entry_point: &str, arguments: A) -> Result<R, Failure>
    where
        A: for<'js> IntoArgs<'js>,
        R: for<'js> FromJs<'js>,
    {
        self.call(TICKS_INTERNAL, entry_point, arguments)
    }

    /// Runs `work` with `loop.js`'s entry points, on the ticks that are left.
    pub(crate) fn with<R>(
        &self,
        work: impl for<'js> FnOnce(&Ctx<'js>, &Object<'js>) -> rquickjs::Result<R>,
    ) -> Result<R, Failure> {
        self.main.with(|ctx| {
            let result = ctx.globals().get("settee").and_then(|entry_points| work(&ctx, &entry_points));
            result.map_err(|e| self.failure(&ctx, e))
        })
    }

    /// As [`Engine::with`], with `ticks`.
    pub(crate) fn with_ticks<R>(
        &self,
        ticks: u64,
        work: impl for<'js> FnOnce(&Ctx<'js>, &Object<'js>) -> rquickjs::Result<R>,
    ) -> Result<R, Failure> {
        self.meter.set(ticks);
        self.with(work)
    }

    /// As [`Engine::with`], with ticks for work that runs no design function.
    pub(crate) fn with_internal<R>(
        &self,
        work: impl for<'js> FnOnce(&Ctx<'js>, &Object<'js>) -> rquickjs::Result<R>,
    ) -> Result<R, Failure> {
        self.with_ticks(TICKS_INTERNAL, work)
    }

    fn failure(&self, ctx: &Ctx<'_>, error: rquickjs::Error) -> Failure {
        let raised = ctx.catch();
        if self.meter.is_empty() {
            return Failure::Ticks;
        }
        self.meter.set(TICKS_INTERNAL);
        match error {
            rquickjs::Error::Allocation | rquickjs::Error::Unknown => Failure::Memory,
            rquickjs::Error::Exception => match raised.as_exception().and_then(|e| e.message()) {
                // No design function's exception comes here.
                _ if raised.is_null() => Failure::Memory,
                Some(message) if message == "out of memory" => Failure::Memory,
                Some(message) => Failure::Other(message),
                None => Failure::Other("exception without a message".to_owned()),
            },
            other => Failure::Other(other.to_string()),
        }
    }

    /// Gives the engine's poll counters their initial value, in the realm of `loop.js` and in that of
    /// function `index`.
    pub(crate) fn align(&self, index: usize) -> Result<(), Failure> {
        for realm in [-1, i32::try_from(index).expect("few functions")] {
            match self.call::<_, Value0>(1, "spin", (realm,)) {
                Err(Failure::Ticks) => (),
                Err(failure) => return Err(failure),
                Ok(Value0) => return Err(Failure::Other("spin returned".to_owned())),
            }
        }
        Ok(())
    }

    /// Calls an entry point with all ticks, and with the index of a function and `arguments`, JSON text.
    pub(crate) fn call_json(
        &self,
        entry_point: &str,
        index: usize,
        arguments: &[&str],
    ) -> Result<String, Failure> {
        self.with_ticks(self.limits.ticks, |ctx, entry_points| {
            let mut call = Args::new(ctx.clone(), arguments.len() + 1);
            call.push_arg(index as u32)?;
            for &argument in arguments {
                call.push_arg(ctx.json_parse(argument)?)?;
            }
            entry_points.get::<_, Function>(entry_point)?.call_arg(call)
        })
    }

    /// As [`Engine::call_json`]. If the ticks do not suffice it runs again with aligned counters, so that its
    /// end does not depend on what ran before.
    pub(crate) fn call_counted(
        &self,
        entry_point: &str,
        index: usize,
        arguments: &[&str],
    ) -> Result<String, Failure> {
        match self.call_json(entry_point, index, arguments) {
            Err(Failure::Ticks) => {
                self.align(index)?;
                self.call_json(entry_point, index, arguments)
            }
            other => other,
        }
    }

    /// Whether function `index` itself throws the null that it was left with. The engine too throws null if
    /// memory runs out so far that it cannot allocate an exception. A function that is given more memory runs
    /// longer until memory runs out; until its own `throw` it runs as long as before. `work` calls it and
    /// returns None if it was left with null. Returns the value with null trusted, None if memory ran out.
    pub(crate) fn settle_null<R>(
        &self,
        index: usize,
        mut work: impl FnMut(&Engine) -> Result<Option<R>, Failure>,
    ) -> Result<Option<R>, Failure> {
        let (first, ticks) = self.run_measured(index, &mut work)?;
        if first.is_some() {
            return Ok(first);
        }
        self.runtime.set_memory_limit(self.memory_bytes() * MEMORY_FACTOR_NULL);
        let second = self
            .call_internal::<_, Value0>("trustNull", (true,))
            .and_then(|_| self.run_measured(index, &mut work));
        self.limit_memory();
        let (value, ticks_more_memory) = match second {
            Ok(second) => second,
            Err(Failure::Ticks) => return Ok(None),
            Err(failure) => return Err(failure),
        };
        self.call_internal::<_, Value0>("trustNull", (false,))?;
        Ok(value.filter(|_| ticks == ticks_more_memory))
    }

    /// Runs `work` with all ticks and aligned counters. Returns the ticks that it used, too.
    fn run_measured<R>(
        &self,
        index: usize,
        work: impl FnOnce(&Engine) -> Result<Option<R>, Failure>,
    ) -> Result<(Option<R>, u64), Failure> {
        self.align(index)?;
        self.meter.set(self.limits.ticks);
        let value = work(self)?;
        Ok((value, self.limits.ticks - self.meter.left()))
    }

    /// Collects cycles only after much garbage. The engine lowers its threshold at each collection.
    pub(crate) fn delay_collection(&self) {
        self.runtime.set_gc_threshold(GARBAGE_BYTES_MAX);
    }
}

/// A result that is ignored.
pub(crate) struct Value0;

impl<'js> FromJs<'js> for Value0 {
    fn from_js(_: &Ctx<'js>, _: Value<'js>) -> rquickjs::Result<Self> {
        Ok(Value0)
    }
}

/// How a source begins, after white space and comments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Start {
    /// `function (`: an expression that no script can begin with.
    Anonymous,
    /// `function name`: a declaration.
    Named,
    /// Anything else, such as an arrow function or a parenthesis.
    Other,
}

impl Start {
    fn of(source: &str) -> Start {
        let Some(rest) = skip_trivia(source).strip_prefix("function") else { return Start::Other };
        let after = skip_trivia(rest);
        let after = after.strip_prefix('*').map_or(after, skip_trivia);
        if after.starts_with('(') {
            Start::Anonymous
        } else if after.len() < rest.len() {
            Start::Named
        } else {
            Start::Other
        }
    }

    fn name(self) -> &'static str {
        match self {
            Start::Anonymous => "anonymous",
            Start::Named => "named",
            Start::Other => "other",
        }
    }
}

/// What follows leading white space and comments.
fn skip_trivia(source: &str) -> &str {
    let mut rest = source.trim_start_matches(|c: char| c.is_whitespace() || c == '\u{feff}');
    loop {
        let end = if rest.starts_with("//") {
            rest.find(['\n', '\r', '\u{2028}', '\u{2029}'])
        } else if let Some(comment) = rest.strip_prefix("/*") {
            comment.find("*/").map(|at| at + 4)
        } else {
            return rest;
        };
        let Some(end) = end else { return "" };
        rest = rest[end..].trim_start_matches(|c: char| c.is_whitespace() || c == '\u{feff}');
    }
}
