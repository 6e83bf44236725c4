//! Which members of its document a map function reads, so that the engine need not parse the others.
//!
//! Most functions that need the engine name a few members: `doc.type`, `doc['at']`. Over a document that has only
//! these, such a function does the same, since nothing else of the document can be seen by it:
//! - The parameter is a plain name that is declared once, and occurs nowhere but before `.name` or `['name']`.
//! - What it reads there isn't called: a method would get the document as `this`.
//! - `arguments`, `this`, `eval` and what else leads to the document or its prototypes another way don't occur.

use oxc_ast::ast;
use oxc_ast_visit::{Visit, walk};

use crate::compile::parse;
use crate::document::{self, Document};
use crate::globals::may_change_globals;

/// Members that are read of a document: more are not worth looking for.
const MEMBERS_MAX: usize = 32;

/// The members of a document that map functions read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Members(Vec<(String, u32)>);

impl Members {
    /// What a map function reads. `None` if it may read any member. Blocks as [`crate::Plan::compile`] does.
    pub fn read_by(source: &str) -> Option<Members> {
        if may_change_globals(source) {
            return None;
        }
        parse(source, |_, expression| Ok(read_by(expression))).ok()?
    }

    /// What several map functions read. `None` if one of them may read any member.
    pub fn read_by_all(sources: &[&str]) -> Option<Members> {
        let mut all = Members(Vec::new());
        for source in sources {
            for (name, _) in Members::read_by(source)?.0 {
                all.add(&name)?;
            }
        }
        Some(all)
    }

    /// The members' names.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(name, _)| name.as_str())
    }

    /// Appends the document's JSON text without its other members.
    pub fn write(&self, document: &Document<'_>, out: &mut Vec<u8>) {
        out.push(b'{');
        let begin = out.len();
        for (name, hash) in &self.0 {
            let Some((name, value)) = document.root_member_text(name.as_bytes(), *hash) else { continue };
            if out.len() > begin {
                out.push(b',');
            }
            out.extend_from_slice(name);
            out.push(b':');
            out.extend_from_slice(value);
        }
        out.push(b'}');
    }

    fn add(&mut self, name: &str) -> Option<()> {
        if self.names().any(|own| own == name) {
            return Some(());
        }
        if self.0.len() == MEMBERS_MAX {
            return None;
        }
        self.0.push((name.to_owned(), document::name_hash(name.as_bytes())));
        Some(())
    }
}

fn read_by(expression: &ast::Expression<'_>) -> Option<Members> {
    let params = match expression.get_inner_expression() {
        ast::Expression::FunctionExpression(function) => &function.params,
        ast::Expression::ArrowFunctionExpression(function) => &function.params,
        _ => return None,
    };
    if params.rest.is_some() {
        return None;
    }
    let document = match params.items.first().map(|param| &param.pattern) {
        Some(ast::BindingPattern::BindingIdentifier(name)) => name.name.as_str(),
        Some(_) => return None,
        None => "",
    };
    let mut reads = Reads { document, ..Reads::default() };
    reads.visit_expression(expression);
    let Reads { members, declarations, mentions, reads, is_elsewhere, .. } = reads;
    let is_whole = is_elsewhere || mentions != reads || declarations != params.items.len().min(1);
    if is_whole {
        return None;
    }
    let mut read = Members(Vec::new());
    for name in &members {
        read.add(name)?;
    }
    Some(read)
}

/// Finds what a function does with its document.
#[derive(Default)]
struct Reads<'s> {
    /// The parameter's name.
    document: &'s str,
    members: Vec<String>,
    /// Declarations of that name, and other occurrences; and those of the latter that read a member.
    declarations: usize,
    mentions: usize,
    reads: usize,
    /// Whether the document may be had in another way.
    is_elsewhere: bool,
}

impl Reads<'_> {
    /// Whether an expression is a member of the document, or may be.
    fn is_member(&self, expression: &ast::Expression<'_>) -> bool {
        match expression.get_inner_expression() {
            ast::Expression::StaticMemberExpression(member) => self.is_document(&member.object),
            ast::Expression::ComputedMemberExpression(member) => self.is_document(&member.object),
            ast::Expression::ChainExpression(_) => true,
            _ => false,
        }
    }

    fn is_document(&self, expression: &ast::Expression<'_>) -> bool {
        matches!(expression, ast::Expression::Identifier(name) if name.name == self.document)
    }
}

impl<'a> Visit<'a> for Reads<'_> {
    fn visit_identifier_reference(&mut self, name: &ast::IdentifierReference<'a>) {
        self.mentions += usize::from(name.name == self.document);
        self.is_elsewhere |= name.name == "arguments";
    }

    fn visit_binding_identifier(&mut self, name: &ast::BindingIdentifier<'a>) {
        self.declarations += usize::from(name.name == self.document);
    }

    fn visit_static_member_expression(&mut self, member: &ast::StaticMemberExpression<'a>) {
        if self.is_document(&member.object) {
            self.reads += 1;
            self.members.push(member.property.name.as_str().to_owned());
        }
        // A function's `arguments`, as some engines have it.
        self.is_elsewhere |= member.property.name == "arguments";
        walk::walk_static_member_expression(self, member);
    }

    fn visit_computed_member_expression(&mut self, member: &ast::ComputedMemberExpression<'a>) {
        if let (true, ast::Expression::StringLiteral(name)) =
            (self.is_document(&member.object), &member.expression)
            && !name.lone_surrogates
        {
            self.reads += 1;
            self.members.push(name.value.as_str().to_owned());
        }
        walk::walk_computed_member_expression(self, member);
    }

    fn visit_call_expression(&mut self, call: &ast::CallExpression<'a>) {
        self.is_elsewhere |= self.is_member(&call.callee);
        walk::walk_call_expression(self, call);
    }

    fn visit_tagged_template_expression(&mut self, template: &ast::TaggedTemplateExpression<'a>) {
        self.is_elsewhere |= self.is_member(&template.tag);
        walk::walk_tagged_template_expression(self, template);
    }
}

#[cfg(test)]
mod tests {
    //! Goal: a function's members are known only if it can't see the others.
    //! Method: lists. That rows are the same is tested against the engine, in `tests/suite/fuzz.rs`.

    use super::Members;
    use crate::document::Document;

    #[test]
    fn members_are_known_of_functions_that_name_them() {
        for (source, names) in [
            ("function (doc) { emit(doc.a, doc['b']); }", "a b"),
            ("doc => { if (/x/.test(doc.a)) emit(new Date(doc.at).getTime(), doc.a.b); }", "a at"),
            ("function (d) { d.tags.sort().forEach(function (t) { emit(t, d?.n); }); }", "tags n"),
            ("function (doc) { /* the doc */ var s = 'doc'; for (var k in doc.o) emit(doc.o[k], s); }", "o"),
            (
                "function (doc, x) { doc.a = 1; delete doc.b; doc.c++; emit(typeof doc.toString); }",
                "a b c toString",
            ),
            ("function f(doc) { emit(x.doc, {doc: doc.a}); }", "a"),
            ("() => emit(1, 2)", ""),
        ] {
            let members = Members::read_by(source).unwrap_or_else(|| panic!("{source}"));
            assert_eq!(members.names().collect::<Vec<_>>().join(" "), names, "{source}");
        }
    }

    #[test]
    fn functions_that_may_see_more_read_any_member() {
        for source in [
            "function (doc) { emit(doc.a, doc); }",
            "function (doc) { for (var name in doc) emit(name); }",
            "function (doc) { emit(doc[x]); }",
            "function (doc) { if ('a' in doc) emit(1); }",
            "function (doc) { emit(doc.hasOwnProperty('a')); }",
            "function (doc) { emit((doc.valueOf)().a); }",
            "function (doc) { emit(doc.valueOf?.().a); }",
            "function (doc) { emit((doc?.valueOf)().a); }",
            "function (doc) { emit(doc['valueOf']().a); }",
            "function (doc) { emit(doc.valueOf``); }",
            "function (doc) { emit(arguments[0].a); }",
            "function f(doc) { emit(f.arguments[0].a); }",
            "function (doc) { var doc = x; emit(doc.a); }",
            "function (doc) { [1].forEach(doc => emit(doc.a)); }",
            "function doc(doc) { emit(doc.a); }",
            "function (doc) { var { a } = doc; emit(a); }",
            "function (doc, other = doc) { emit(other.a); }",
            "function ({ a }) { emit(a); }",
            "function (...all) { emit(all[0].a); }",
            "function (doc) { emit(eval('doc').a); }",
            "function (doc) { with (doc) emit(a); }",
            "function (doc) { emit(require('views/lib/x')(doc.a)); }",
            "function (doc) { emit(doc.__proto__); }",
            "function (doc) { emit(`${doc}`); }",
            "function (doc) { ",
        ] {
            assert_eq!(Members::read_by(source), None, "{source}");
        }
        let many: String = (0..33).map(|i| format!("emit(d.m{i});")).collect();
        assert_eq!(Members::read_by(&format!("function (d) {{ {many} }}")), None);
    }

    #[test]
    fn functions_together_read_the_members_of_each() {
        let all = Members::read_by_all(&["function (a) { emit(a.x); }", "b => emit(b.y, b.x)"]);
        assert_eq!(all.expect("known").names().collect::<Vec<_>>(), ["x", "y"]);
        assert_eq!(Members::read_by_all(&["function (a) { emit(a.x); }", "b => emit(b)"]), None);
    }

    #[test]
    fn what_is_written_has_the_last_value_of_each_member_as_it_was_stored() {
        let members = Members::read_by("d => emit(d.a, d.c, d.missing)").expect("known");
        let json = r#"{ "a": 1, "b": {"a": 5}, "\u0063": [1.0, "\n"], "a": "x" }"#;
        let mut out = Vec::new();
        members.write(&Document::new(json.as_bytes()).expect("JSON"), &mut out);
        assert_eq!(String::from_utf8(out).expect("UTF-8"), r#"{"a":"x","\u0063":[1.0, "\n"]}"#);
    }
}
