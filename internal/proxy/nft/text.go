package nft

import (
	"fmt"
	"strings"

	"github.com/google/nftables/expr"
)

// ruleText prints a rule, expression by expression, with register numbers.
func ruleText(rule []expr.Any) string {
	var parts []string
	for _, e := range rule {
		parts = append(parts, exprText(e))
	}
	return strings.Join(parts, " ")
}

func exprText(e expr.Any) string {
	switch e := e.(type) {
	case *expr.Payload:
		return fmt.Sprintf("[r%d = payload %d@%d+%d]", e.DestRegister, e.Len, e.Base, e.Offset)
	case *expr.Meta:
		if e.SourceRegister {
			return fmt.Sprintf("[meta %d = r%d]", e.Key, e.Register)
		}
		return fmt.Sprintf("[r%d = meta %d]", e.Register, e.Key)
	case *expr.Lookup:
		switch {
		case e.Invert:
			return fmt.Sprintf("[r%d not in %s]", e.SourceRegister, e.SetName)
		case e.IsDestRegSet:
			return fmt.Sprintf("[r%d = %s[r%d]]", e.DestRegister, e.SetName, e.SourceRegister)
		}
		return fmt.Sprintf("[r%d in %s]", e.SourceRegister, e.SetName)
	case *expr.Bitwise:
		return fmt.Sprintf("[r%d = r%d & %x ^ %x]", e.DestRegister, e.SourceRegister, e.Mask, e.Xor)
	case *expr.Cmp:
		op := "=="
		if e.Op == expr.CmpOpNeq {
			op = "!="
		}
		return fmt.Sprintf("[r%d %s %x]", e.Register, op, e.Data)
	case *expr.Numgen:
		return fmt.Sprintf("[r%d = random %d + %d]", e.Register, e.Modulus, e.Offset)
	case *expr.NAT:
		return fmt.Sprintf("[dnat r%d : r%d]", e.RegAddrMin, e.RegProtoMin)
	case *expr.Dynset:
		return fmt.Sprintf("[update %s r%d : r%d for %s]", e.SetName, e.SrcRegKey, e.SrcRegData, e.Timeout)
	case *expr.Fib:
		return fmt.Sprintf("[r%d = address type]", e.Register)
	case *expr.Ct:
		return fmt.Sprintf("[r%d = ct %d]", e.Register, e.Key)
	case *expr.Verdict:
		switch e.Kind {
		case expr.VerdictDrop:
			return "drop"
		case expr.VerdictGoto:
			return "goto " + e.Chain
		case expr.VerdictJump:
			return "jump " + e.Chain
		}
	case *expr.Reject:
		return "reject"
	case *expr.Masq:
		return "masquerade"
	}
	return fmt.Sprintf("%T", e)
}
