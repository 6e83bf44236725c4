//! Map functions that run as plans over the documents' text where they can, and in the engine where they can't.
//!
//! A plan gives the rows that the engine would give, or leaves a document to the engine. A function without a plan
//! always runs there, over the members that it reads if they are known. If one of a design document's functions may change globals, none has a plan, since the functions
//! of a design document share the prototypes of their documents.

use std::borrow::Cow;
use std::sync::Arc;

use settee_js::Limits;
use settee_map::{Document, DocumentBuffer, Members, Outcome, Plan, Rows, Scratch, may_change_globals};

use crate::error::Result;
use crate::javascript::JavascriptMapper;
use crate::mapper::{Mapped, Mapper};

/// How a design document's map functions run.
pub(crate) struct Plans {
    /// The plan of each function that has one, and why the others have none.
    functions: Vec<std::result::Result<Plan, String>>,
    /// What the functions without a plan read, if that is known.
    members: Option<Members>,
}

impl Plans {
    pub(crate) fn compile(lib: Option<&str>, sources: &[&str]) -> Plans {
        if lib.is_some_and(may_change_globals) {
            return Plans::none(sources, "views.lib may change globals");
        }
        let compile = |source: &&str| Plan::compile(source).map_err(|outside| outside.to_string());
        let plans: Vec<_> = sources.iter().map(compile).collect();
        let changes = |(source, plan): (&&str, &std::result::Result<Plan, String>)| {
            plan.is_err() && may_change_globals(source)
        };
        if sources.iter().zip(&plans).any(changes) {
            return Plans::none(sources, "a function of the design document may change globals");
        }
        let unplanned = plans.iter().zip(sources).filter(|(plan, _)| plan.is_err());
        let unplanned: Vec<&str> = unplanned.map(|(_, source)| *source).collect();
        let members = if unplanned.is_empty() { None } else { Members::read_by_all(&unplanned) };
        Plans { functions: plans, members }
    }

    /// All functions run in the engine.
    fn none(sources: &[&str], reason: &str) -> Plans {
        Plans { functions: sources.iter().map(|_| Err(reason.to_owned())).collect(), members: None }
    }

    /// How a function runs, for people.
    pub(crate) fn explain(&self, function: usize) -> String {
        match (&self.functions[function], &self.members) {
            (Ok(plan), _) => plan.explain(),
            (Err(reason), None) => format!("engine, over whole documents: {reason}"),
            (Err(reason), Some(members)) => {
                let names: Vec<&str> = members.names().collect();
                format!("engine, over the members {}: {reason}", names.join(", "))
            }
        }
    }
}

/// The map functions of a design document.
pub(crate) struct PlannedMapper {
    plans: Arc<Plans>,
    /// The database and the design document, for the log.
    origin: String,
    lib: Option<String>,
    sources: Vec<String>,
    limits: Limits,
    /// Runs the functions without a plan.
    outside: Option<JavascriptMapper>,
    /// Runs all functions, over documents that plans leave to it; made with the first of them.
    fallback: Option<JavascriptMapper>,
    buffer: DocumentBuffer,
    scratch: Scratch,
}

impl PlannedMapper {
    /// # Errors
    /// If an engine can't be made.
    pub(crate) fn new(
        plans: Arc<Plans>,
        origin: String,
        lib: Option<&str>,
        sources: &[&str],
        limits: Limits,
    ) -> Result<PlannedMapper> {
        let unplanned = plans.functions.iter().zip(sources).filter(|(plan, _)| plan.is_err());
        let unplanned: Vec<&str> = unplanned.map(|(_, source)| *source).collect();
        let outside = match unplanned.is_empty() {
            true => None,
            false => Some(JavascriptMapper::new(origin.clone(), lib, &unplanned, limits)?),
        };
        Ok(PlannedMapper {
            plans,
            origin,
            lib: lib.map(str::to_owned),
            sources: sources.iter().map(|source| (*source).to_owned()).collect(),
            limits,
            outside,
            fallback: None,
            buffer: DocumentBuffer::default(),
            scratch: Scratch::new(),
        })
    }

    /// Runs the plans over a document. Gives `None` for each function that has to run in the engine, and the text that
    /// those without a plan get.
    fn run_plans<'d>(&mut self, text: &'d [u8]) -> (Vec<Option<Mapped>>, Cow<'d, [u8]>) {
        let Plans { functions, members } = &*self.plans;
        let none = || functions.iter().map(|_| None).collect();
        if members.is_none() && functions.iter().all(std::result::Result::is_err) {
            return (none(), Cow::Borrowed(text));
        }
        let Ok(document) = Document::with_buffer(text, std::mem::take(&mut self.buffer)) else {
            return (none(), Cow::Borrowed(text));
        };
        let scratch = &mut self.scratch;
        let run = |plan: &std::result::Result<Plan, String>| {
            let mut rows = CollectedRows::default();
            match plan.as_ref().ok()?.run(&document, scratch, &mut rows) {
                Outcome::Rows => Some(Mapped::Rows(rows.0)),
                Outcome::Dropped(message) => Some(Mapped::Dropped(message)),
                Outcome::NeedsEngine(_) => None,
            }
        };
        let mapped = functions.iter().map(run).collect();
        let mut seen = Cow::Borrowed(text);
        if let Some(members) = members {
            let mut narrowed = Vec::new();
            members.write(&document, &mut narrowed);
            seen = Cow::Owned(narrowed);
        }
        self.buffer = document.into_buffer();
        (mapped, seen)
    }

    /// Runs the functions that have a plan in the engine, over the documents for which they need it.
    fn run_fallback(&mut self, documents: &[&[u8]], mapped: &mut [Vec<Option<Mapped>>]) -> Result<()> {
        let is_left = |functions: &[Option<Mapped>]| {
            functions.iter().zip(&self.plans.functions).any(|(mapped, plan)| mapped.is_none() && plan.is_ok())
        };
        let left: Vec<usize> = (0..documents.len()).filter(|index| is_left(&mapped[*index])).collect();
        if left.is_empty() {
            return Ok(());
        }
        if self.fallback.is_none() {
            let sources: Vec<&str> = self.sources.iter().map(String::as_str).collect();
            let (origin, lib) = (self.origin.clone(), self.lib.as_deref());
            self.fallback = Some(JavascriptMapper::new(origin, lib, &sources, self.limits)?);
        }
        let engine = self.fallback.as_mut().expect("it was made");
        let texts: Vec<&[u8]> = left.iter().map(|index| documents[*index]).collect();
        for (index, outcomes) in left.into_iter().zip(engine.map(&texts)) {
            for ((place, outcome), plan) in mapped[index].iter_mut().zip(outcomes).zip(&self.plans.functions)
            {
                if place.is_none() && plan.is_ok() {
                    *place = Some(outcome);
                }
            }
        }
        Ok(())
    }
}

impl Mapper for PlannedMapper {
    fn map(&mut self, documents: &[&[u8]]) -> Vec<Vec<Mapped>> {
        let (mut mapped, seen): (Vec<_>, Vec<_>) =
            documents.iter().map(|document| self.run_plans(document)).unzip();
        if let Some(outside) = &mut self.outside {
            let seen: Vec<&[u8]> = seen.iter().map(|text| &**text).collect();
            for (functions, outcomes) in mapped.iter_mut().zip(outside.map(&seen)) {
                let mut outcomes = outcomes.into_iter();
                for (place, plan) in functions.iter_mut().zip(&self.plans.functions) {
                    if plan.is_err() {
                        *place = outcomes.next();
                    }
                }
            }
        }
        let failed = self.run_fallback(documents, &mut mapped).err();
        let outcome = |mapped: Option<Mapped>| match (mapped, &failed) {
            (Some(mapped), _) => mapped,
            (None, Some(error)) => Mapped::Stopped(error.clone()),
            (None, None) => unreachable!("a function has a plan, or ran in the engine"),
        };
        mapped.into_iter().map(|functions| functions.into_iter().map(outcome).collect()).collect()
    }
}

/// The rows of a run.
#[derive(Default)]
struct CollectedRows(Vec<(String, String)>);

impl Rows for CollectedRows {
    fn row(&mut self, key: &[u8], value: &[u8]) {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        self.0.push((text(key), text(value)));
    }
}
