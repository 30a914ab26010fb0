package validate

import (
	"fmt"
	"strings"
	"sync"

	celgo "github.com/google/cel-go/cel"
	admission "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	plugin "k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/cel/environment"
)

// Types that expressions must have.
var (
	wantBool       = []*celgo.Type{celgo.BoolType}
	wantText       = []*celgo.Type{celgo.StringType}
	wantTextOrNull = []*celgo.Type{celgo.StringType, celgo.NullType}
)

// environments is made when the first expression is seen: it costs tens of
// milliseconds and some megabytes, and most clusters never need it.
var environments = sync.OnceValue(func() *environment.EnvSet {
	return environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion())
})

// accessor is an expression as the compiler wants it.
type accessor struct {
	name, text string
	types      []*celgo.Type
}

func (a accessor) GetName() string            { return a.name }
func (a accessor) GetExpression() string      { return a.text }
func (a accessor) ReturnTypes() []*celgo.Type { return a.types }

// expressions compiles the expressions of one policy, which may use its
// variables.
type expressions struct {
	compiler *plugin.CompositedCompiler
	options  plugin.OptionalVariableDeclarations
	broken   bool
}

// newExpressions compiles the variables, each of which may use those before it.
func newExpressions(variables []admission.Variable, params bool) (*expressions, errs) {
	compiler, err := plugin.NewCompositedCompiler(environments())
	if err != nil {
		return &expressions{broken: true}, errs{field.InternalError(specPath, fmt.Errorf("making a CEL compiler: %w", err))}
	}
	e := &expressions{compiler: compiler, options: plugin.OptionalVariableDeclarations{HasParams: params, HasAuthorizer: true}}
	var all errs
	for i, v := range variables {
		at := specPath.Child("variables").Index(i)
		switch {
		case v.Name == "":
			all = append(all, field.Required(at.Child("name"), "name is not specified"))
			continue
		case len(validation.IsQualifiedName(v.Name)) > 0 || strings.ContainsAny(v.Name, "-./"):
			all = append(all, field.Invalid(at.Child("name"), v.Name, "name is not a valid CEL identifier"))
			continue
		}
		if strings.TrimSpace(v.Expression) == "" {
			all = append(all, field.Required(at.Child("expression"), "expression is not specified"))
			continue
		}
		result := compiler.CompileAndStoreVariable(accessor{v.Name, v.Expression, []*celgo.Type{celgo.AnyType, celgo.DynType}}, e.options,
			environment.NewExpressions)
		if result.Error != nil {
			all = append(all, field.Invalid(at.Child("expression"), v.Expression, result.Error.Detail))
		}
	}
	return e, all
}

func (e *expressions) check(p *field.Path, text string, types []*celgo.Type) errs {
	if strings.TrimSpace(text) == "" {
		return errs{field.Required(p, "expression is not specified")}
	}
	if e.broken {
		return nil
	}
	if result := e.compiler.CompileCELExpression(accessor{text: text, types: types}, e.options,
		environment.NewExpressions); result.Error != nil {
		return errs{field.Invalid(p, text, result.Error.Detail)}
	}
	return nil
}

// checkPatch compiles an expression that makes a patch.
func (e *expressions) checkPatch(p *field.Path, text string, compiled plugin.ExpressionAccessor) errs {
	if e.broken {
		return nil
	}
	options := e.options
	options.HasPatchTypes = true
	if result := e.compiler.CompileCELExpression(compiled, options, environment.NewExpressions); result.Error != nil {
		return errs{field.Invalid(p, text, result.Error.Detail)}
	}
	return nil
}

// maxMatchConditions bounds the conditions of one webhook or policy.
const maxMatchConditions = 64

func matchConditions(p *field.Path, list []admission.MatchCondition, params bool) errs {
	if len(list) == 0 {
		return nil
	}
	if len(list) > maxMatchConditions {
		return errs{field.TooMany(p, len(list), maxMatchConditions)}
	}
	e, all := newExpressions(nil, params)
	names := unique[string]{}
	for i, c := range list {
		at := p.Index(i)
		all = append(all, named(at.Child("name"), c.Name, validation.IsQualifiedName)...)
		all = append(all, names.add(at.Child("name"), c.Name)...)
		all = append(all, e.check(at.Child("expression"), c.Expression, wantBool)...)
	}
	return all
}
