//! Statements and declarations.

use oxc_ast::ast;
use oxc_span::{GetSpan, Span};

use super::outside::{Compiled, outside};
use super::scopes::Meaning;
use super::{Body, Compiler, HELPERS_MAX};
use crate::plan::{For, Slot, Statement};

/// Which jumps a statement may contain.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Jumps {
    can_break: bool,
    can_continue: bool,
}

const IN_LOOP: Jumps = Jumps { can_break: true, can_continue: true };

impl Compiler<'_> {
    /// Compiles a function's body: its hoisted variables, and its statements.
    pub(super) fn function_body(
        &mut self,
        body: &ast::FunctionBody<'_>,
    ) -> Compiled<(Vec<Slot>, Vec<Statement>)> {
        if !body.directives.is_empty() {
            return outside(body.span, "a directive");
        }
        let mut variables = Vec::new();
        let mut helpers = Vec::new();
        for statement in &body.statements {
            if let ast::Statement::FunctionDeclaration(function) = statement {
                let Some(name) = &function.id else {
                    return outside(function.span, "a function without a name");
                };
                self.check_function(function)?;
                if self.helper_count == HELPERS_MAX {
                    return outside(function.span, "many functions");
                }
                self.helper_count += 1;
                let id = self.reserve_function();
                self.scopes.declare_helper(&name.name, id, name.span)?;
                helpers.push((id, function));
            }
        }
        self.hoist_all(&body.statements, &mut variables)?;
        self.declare_lexical_names(&body.statements)?;
        for (id, function) in helpers {
            let outer = self.helper.replace(id);
            if outer.is_some() {
                return outside(function.span, "a function in an inner function");
            }
            self.function(Some(id), None, &function.params, Body::of(function)?)?;
            self.helper = outer;
        }
        let mut statements = Vec::new();
        for statement in &body.statements {
            if !matches!(statement, ast::Statement::FunctionDeclaration(_)) {
                statements.push(self.statement(statement, Jumps::default())?);
            }
        }
        Ok((variables, statements))
    }

    fn hoist_all(&mut self, statements: &[ast::Statement<'_>], variables: &mut Vec<Slot>) -> Compiled<()> {
        statements.iter().try_for_each(|statement| self.hoist(statement, variables))
    }

    /// Declares the `var`s in a statement.
    fn hoist(&mut self, statement: &ast::Statement<'_>, variables: &mut Vec<Slot>) -> Compiled<()> {
        self.nested(statement.span(), |compiler| match statement {
            ast::Statement::VariableDeclaration(declaration) => {
                compiler.hoist_declaration(declaration, variables)
            }
            ast::Statement::BlockStatement(block) => compiler.hoist_all(&block.body, variables),
            ast::Statement::IfStatement(branch) => {
                compiler.hoist(&branch.consequent, variables)?;
                branch.alternate.as_ref().map_or(Ok(()), |alternate| compiler.hoist(alternate, variables))
            }
            ast::Statement::ForStatement(of) => {
                if let Some(ast::ForStatementInit::VariableDeclaration(declaration)) = &of.init {
                    compiler.hoist_declaration(declaration, variables)?;
                }
                compiler.hoist(&of.body, variables)
            }
            ast::Statement::ForInStatement(of) => {
                compiler.hoist_loop_variable(&of.left, variables)?;
                compiler.hoist(&of.body, variables)
            }
            ast::Statement::ForOfStatement(of) => {
                compiler.hoist_loop_variable(&of.left, variables)?;
                compiler.hoist(&of.body, variables)
            }
            ast::Statement::WhileStatement(of) => compiler.hoist(&of.body, variables),
            ast::Statement::DoWhileStatement(of) => compiler.hoist(&of.body, variables),
            ast::Statement::SwitchStatement(of) => {
                of.cases.iter().try_for_each(|case| compiler.hoist_all(&case.consequent, variables))
            }
            _ => Ok(()),
        })
    }

    fn hoist_loop_variable(
        &mut self,
        left: &ast::ForStatementLeft<'_>,
        variables: &mut Vec<Slot>,
    ) -> Compiled<()> {
        match left {
            ast::ForStatementLeft::VariableDeclaration(declaration) => {
                self.hoist_declaration(declaration, variables)
            }
            _ => Ok(()),
        }
    }

    fn hoist_declaration(
        &mut self,
        declaration: &ast::VariableDeclaration<'_>,
        variables: &mut Vec<Slot>,
    ) -> Compiled<()> {
        if declaration.kind != ast::VariableDeclarationKind::Var {
            return Ok(());
        }
        for declarator in &declaration.declarations {
            let name = declared_name(declarator)?;
            let slot = self.new_slot(name.span)?;
            if self.scopes.declare_var(&name.name, slot, name.span)? {
                variables.push(slot);
            }
        }
        Ok(())
    }

    /// Declares the `let`s and `const`s of a block, before any of its statements is compiled.
    fn declare_lexical_names(&mut self, statements: &[ast::Statement<'_>]) -> Compiled<()> {
        for statement in statements {
            if let ast::Statement::VariableDeclaration(declaration) = statement {
                self.declare_lexical(declaration, None)?;
            }
        }
        Ok(())
    }

    /// Declares a `let` or `const`, usable after its declarator or from `from` on.
    fn declare_lexical(
        &mut self,
        declaration: &ast::VariableDeclaration<'_>,
        from: Option<u32>,
    ) -> Compiled<()> {
        let constant = match declaration.kind {
            ast::VariableDeclarationKind::Var => return Ok(()),
            ast::VariableDeclarationKind::Let => false,
            ast::VariableDeclarationKind::Const => true,
            _ => return outside(declaration.span, "a declaration with `using`"),
        };
        for declarator in &declaration.declarations {
            let name = declared_name(declarator)?;
            let slot = self.new_slot(name.span)?;
            let from = from.unwrap_or(declarator.span.end);
            self.scopes.declare_lexical(&name.name, slot, from, constant, name.span)?;
        }
        Ok(())
    }

    pub(super) fn statement(&mut self, statement: &ast::Statement<'_>, jumps: Jumps) -> Compiled<Statement> {
        self.nested(statement.span(), |compiler| compiler.any_statement(statement, jumps))
    }

    fn any_statement(&mut self, statement: &ast::Statement<'_>, jumps: Jumps) -> Compiled<Statement> {
        Ok(match statement {
            ast::Statement::ExpressionStatement(statement) => {
                Statement::Evaluate(self.expression(&statement.expression)?)
            }
            ast::Statement::EmptyStatement(_) => Statement::Block(Vec::new()),
            ast::Statement::BlockStatement(block) => {
                self.scopes.enter_block();
                self.declare_lexical_names(&block.body)?;
                let statements = self.statements(&block.body, jumps)?;
                self.scopes.leave_block();
                Statement::Block(statements)
            }
            ast::Statement::VariableDeclaration(declaration) => {
                Statement::Block(self.declaration(declaration)?)
            }
            ast::Statement::IfStatement(branch) => {
                let test = self.expression(&branch.test)?;
                let consequent = Box::new(self.substatement(&branch.consequent, jumps)?);
                let alternate = match &branch.alternate {
                    Some(alternate) => Some(Box::new(self.substatement(alternate, jumps)?)),
                    None => None,
                };
                Statement::If(test, consequent, alternate)
            }
            ast::Statement::ReturnStatement(statement) => Statement::Return(
                statement.argument.as_ref().map(|value| self.expression(value)).transpose()?,
            ),
            ast::Statement::BreakStatement(statement) if statement.label.is_none() && jumps.can_break => {
                Statement::Break
            }
            ast::Statement::ContinueStatement(statement)
                if statement.label.is_none() && jumps.can_continue =>
            {
                Statement::Continue
            }
            ast::Statement::SwitchStatement(statement) => self.switch(statement, jumps)?,
            other => self.loop_statement(other)?,
        })
    }

    fn statements(&mut self, statements: &[ast::Statement<'_>], jumps: Jumps) -> Compiled<Vec<Statement>> {
        statements.iter().map(|statement| self.statement(statement, jumps)).collect()
    }

    /// A statement that isn't in a block of its own, so that it can't declare.
    fn substatement(&mut self, statement: &ast::Statement<'_>, jumps: Jumps) -> Compiled<Statement> {
        match statement {
            ast::Statement::VariableDeclaration(declaration)
                if declaration.kind != ast::VariableDeclarationKind::Var =>
            {
                outside(declaration.span, "a declaration without a block")
            }
            _ => self.statement(statement, jumps),
        }
    }

    fn loop_statement(&mut self, statement: &ast::Statement<'_>) -> Compiled<Statement> {
        self.summary.loop_count += 1;
        match statement {
            ast::Statement::ForStatement(of) => self.for_statement(of),
            ast::Statement::WhileStatement(of) => {
                let test = self.expression(&of.test)?;
                Ok(Statement::While(test, Box::new(self.substatement(&of.body, IN_LOOP)?)))
            }
            ast::Statement::DoWhileStatement(of) => {
                let body = Box::new(self.substatement(&of.body, IN_LOOP)?);
                Ok(Statement::DoWhile(body, self.expression(&of.test)?))
            }
            ast::Statement::ForInStatement(of) => {
                self.scopes.enter_block();
                let (slot, object, body) = self.for_each(&of.left, &of.right, &of.body)?;
                self.scopes.leave_block();
                Ok(Statement::ForIn(slot, object, Box::new(body)))
            }
            ast::Statement::ForOfStatement(of) if !of.r#await => {
                self.scopes.enter_block();
                let (slot, object, body) = self.for_each(&of.left, &of.right, &of.body)?;
                self.scopes.leave_block();
                Ok(Statement::ForOf(slot, object, Box::new(body)))
            }
            other => outside(other.span(), "a statement of this kind"),
        }
    }

    fn for_statement(&mut self, of: &ast::ForStatement<'_>) -> Compiled<Statement> {
        self.scopes.enter_block();
        let init = match &of.init {
            None => Vec::new(),
            Some(ast::ForStatementInit::VariableDeclaration(declaration)) => {
                self.declare_lexical(declaration, None)?;
                self.declaration(declaration)?
            }
            Some(init) => match init.as_expression() {
                Some(expression) => vec![Statement::Evaluate(self.expression(expression)?)],
                None => return outside(of.span, "a loop of this kind"),
            },
        };
        let test = of.test.as_ref().map(|test| self.expression(test)).transpose()?;
        let update = of.update.as_ref().map(|update| self.expression(update)).transpose()?;
        let body = self.substatement(&of.body, IN_LOOP)?;
        self.scopes.leave_block();
        Ok(Statement::For(Box::new(For { init, test, update, body })))
    }

    /// The parts of `for (x in object)` and `for (x of object)`.
    fn for_each(
        &mut self,
        left: &ast::ForStatementLeft<'_>,
        right: &ast::Expression<'_>,
        body: &ast::Statement<'_>,
    ) -> Compiled<(Slot, crate::plan::Expression, Statement)> {
        if let ast::ForStatementLeft::VariableDeclaration(declaration) = left {
            let [declarator] = declaration.declarations.as_slice() else {
                return outside(declaration.span, "a loop of this kind");
            };
            if declarator.init.is_some() {
                return outside(declaration.span, "a loop variable with a value");
            }
            // Until the loop begins, its variable can't be used.
            self.declare_lexical(declaration, Some(right.span().end))?;
            let object = self.expression(right)?;
            let name = declared_name(declarator)?;
            let slot = self.local(&name.name, Span::new(body.span().start, body.span().end))?;
            return Ok((slot, object, self.substatement(body, IN_LOOP)?));
        }
        let ast::ForStatementLeft::AssignmentTargetIdentifier(name) = left else {
            return outside(left.span(), "a loop variable of this kind");
        };
        let object = self.expression(right)?;
        let Meaning::Local { slot, constant: false } = self.resolve(&name.name, name.span)? else {
            return outside(name.span, format!("an assignment to `{}`", name.name));
        };
        Ok((slot, object, self.substatement(body, IN_LOOP)?))
    }

    fn declaration(&mut self, declaration: &ast::VariableDeclaration<'_>) -> Compiled<Vec<Statement>> {
        let mut statements = Vec::new();
        for declarator in &declaration.declarations {
            let name = declared_name(declarator)?;
            let value = declarator.init.as_ref().map(|value| self.expression(value)).transpose()?;
            let is_var = declaration.kind == ast::VariableDeclarationKind::Var;
            let slot = self.local(&name.name, Span::new(declarator.span.end, declarator.span.end))?;
            match value {
                Some(value) => statements.push(Statement::Initialise(slot, value)),
                None if is_var => {}
                None => statements.push(Statement::Reset(slot)),
            }
        }
        Ok(statements)
    }

    /// The slot of a declared variable.
    fn local(&mut self, name: &str, span: Span) -> Compiled<Slot> {
        match self.resolve(name, span)? {
            Meaning::Local { slot, .. } => Ok(slot),
            Meaning::Free | Meaning::Helper(_) => outside(span, format!("the declaration of `{name}`")),
        }
    }

    fn switch(&mut self, statement: &ast::SwitchStatement<'_>, jumps: Jumps) -> Compiled<Statement> {
        let value = self.expression(&statement.discriminant)?;
        let jumps = Jumps { can_break: true, ..jumps };
        let mut cases = Vec::new();
        for case in &statement.cases {
            let test = case.test.as_ref().map(|test| self.expression(test)).transpose()?;
            let statements = case
                .consequent
                .iter()
                .map(|statement| self.substatement(statement, jumps))
                .collect::<Compiled<_>>()?;
            cases.push((test, statements));
        }
        Ok(Statement::Switch(value, cases))
    }
}

fn declared_name<'b, 'a>(
    declarator: &'b ast::VariableDeclarator<'a>,
) -> Compiled<&'b ast::BindingIdentifier<'a>> {
    match &declarator.id {
        ast::BindingPattern::BindingIdentifier(name) => Ok(name),
        _ => outside(declarator.span, "a pattern in a declaration"),
    }
}
