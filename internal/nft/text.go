package nft

import (
	"fmt"
	"strings"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// ruleText prints a rule, expression by expression, with register numbers.
func ruleText(rule []expr.Any) string {
	var parts []string
	for _, e := range rule {
		parts = append(parts, exprText(e))
	}
	return strings.Join(parts, " ")
}

// reg numbers registers by four bytes, from 0: the kernel tells of those that
// begin one of its old registers of 16 bytes by the number of that.
func reg(r uint32) uint32 {
	switch {
	case r >= unix.NFT_REG32_00:
		return r - unix.NFT_REG32_00
	case r > 0:
		return 4 * (r - 1)
	}
	return r
}

func exprText(e expr.Any) string {
	switch e := e.(type) {
	case *expr.Payload:
		return fmt.Sprintf("[r%d = payload %d@%d+%d]", reg(e.DestRegister), e.Len, e.Base, e.Offset)
	case *expr.Meta:
		if e.SourceRegister {
			return fmt.Sprintf("[meta %d = r%d]", e.Key, reg(e.Register))
		}
		return fmt.Sprintf("[r%d = meta %d]", reg(e.Register), e.Key)
	case *expr.Lookup:
		switch {
		case e.Invert:
			return fmt.Sprintf("[r%d not in %s]", reg(e.SourceRegister), e.SetName)
		case e.IsDestRegSet && e.DestRegister == unix.NFT_REG_VERDICT:
			return fmt.Sprintf("verdict %s[r%d]", e.SetName, reg(e.SourceRegister))
		case e.IsDestRegSet:
			return fmt.Sprintf("[r%d = %s[r%d]]", reg(e.DestRegister), e.SetName, reg(e.SourceRegister))
		}
		return fmt.Sprintf("[r%d in %s]", reg(e.SourceRegister), e.SetName)
	case *expr.Bitwise:
		return fmt.Sprintf("[r%d = r%d & %x ^ %x]", reg(e.DestRegister), reg(e.SourceRegister), e.Mask, e.Xor)
	case *expr.Cmp:
		op, known := map[expr.CmpOp]string{expr.CmpOpEq: "==", expr.CmpOpNeq: "!=", expr.CmpOpGte: ">=", expr.CmpOpLte: "<="}[e.Op]
		if !known {
			op = fmt.Sprintf("compared (%d) with", e.Op)
		}
		return fmt.Sprintf("[r%d %s %x]", reg(e.Register), op, e.Data)
	case *expr.Range:
		op := map[expr.CmpOp]string{expr.CmpOpEq: "within", expr.CmpOpNeq: "not within"}[e.Op]
		return fmt.Sprintf("[r%d %s %x-%x]", reg(e.Register), op, e.FromData, e.ToData)
	case *expr.Byteorder:
		return fmt.Sprintf("[r%d = byte order %d of r%d]", reg(e.DestRegister), e.Op, reg(e.SourceRegister))
	case *expr.Numgen:
		return fmt.Sprintf("[r%d = random %d + %d]", reg(e.Register), e.Modulus, e.Offset)
	case *expr.Immediate:
		return fmt.Sprintf("[r%d = %x]", reg(e.Register), e.Data)
	case *expr.NAT:
		if e.Type != expr.NATTypeDestNAT {
			return fmt.Sprintf("[nat %d]", e.Type)
		}
		return fmt.Sprintf("[dnat r%d : r%d]", reg(e.RegAddrMin), reg(e.RegProtoMin))
	case *expr.Dynset:
		op, known := map[uint32]string{unix.NFT_DYNSET_OP_ADD: "add", unix.NFT_DYNSET_OP_UPDATE: "update",
			DynsetDelete: "delete"}[e.Operation]
		if !known {
			op = fmt.Sprint("operation ", e.Operation)
		}
		return fmt.Sprintf("[%s %s r%d : r%d for %s]", op, e.SetName, reg(e.SrcRegKey), reg(e.SrcRegData), e.Timeout)
	case *expr.Fib:
		return fmt.Sprintf("[r%d = address type %t %t]", reg(e.Register), e.FlagSADDR, e.FlagDADDR)
	case *expr.Ct:
		return fmt.Sprintf("[r%d = ct %d]", reg(e.Register), e.Key)
	case *expr.Verdict:
		switch e.Kind {
		case expr.VerdictAccept:
			return "accept"
		case expr.VerdictDrop:
			return "drop"
		case expr.VerdictGoto:
			return "goto " + e.Chain
		case expr.VerdictJump:
			return "jump " + e.Chain
		}
	case *expr.Reject:
		return fmt.Sprintf("reject %d %d", e.Type, e.Code)
	case *expr.Masq:
		return fmt.Sprintf("masquerade %t", e.FullyRandom)
	}
	return fmt.Sprintf("%T", e)
}
